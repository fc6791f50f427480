"""What attention's C code is told of a call: addresses of the projected rows, and shapes that were checked.

`stable_ops` calls it. Nothing here computes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from backbone.engine.ops.interface import HeadForm, KVLayer
from backbone.engine.ops.rope import RopeTable
from kvasir.errors import KernelError
from kvasir.kernels import native


def heads_input(query: Tensor, key: Tensor, value: Tensor, form: HeadForm, rope: RopeTable) -> native.HeadsInput:
    """Addresses, for as long as the tensors live."""
    return native.HeadsInput(
        query.data_ptr(),
        key.data_ptr(),
        value.data_ptr(),
        None if form.query_norm is None else form.query_norm.data_ptr(),
        None if form.key_norm is None else form.key_norm.data_ptr(),
        rope.cos.data_ptr(),
        rope.sin.data_ptr(),
        form.norm_eps,
        form.scale,
    )


def heads_shape(
    query: Tensor, key: Tensor, value: Tensor, form: HeadForm, rope: RopeTable, cache: KVLayer
) -> tuple[int, ...]:
    """heads_shape of csrc/rowops.h. Raises KernelError for parts that do not fit together."""
    n_slot, n_kv_head, n_ctx, d_head = cache.keys.shape
    d_value, (n_rows, d_query) = cache.values.shape[3], query.shape
    norms = [0 if norm is None else norm.numel() for norm in (form.query_norm, form.key_norm)]
    wanted = (
        ("keys", key.shape, (n_rows, n_kv_head * d_head)),
        ("values", value.shape, (n_rows, n_kv_head * d_value)),
        ("cached values", cache.values.shape, (n_slot, n_kv_head, n_ctx, d_value)),
        ("cosines", rope.cos.shape, (n_ctx, rope.cos.shape[1])),
    )
    for name, found, fitting in wanted:
        if found != fitting:
            raise KernelError(f"{name} {list(found)} do not fit; {list(fitting)} are needed")
    if d_query % (n_kv_head * d_head) or 2 * rope.cos.shape[1] > d_head:
        raise KernelError(f"queries of {d_query} and {rope.cos.shape[1]} rotated pairs do not fit heads of {d_head}")
    if norms[0] not in (0, d_head, d_query) or norms[1] not in (0, d_head, n_kv_head * d_head):
        raise KernelError(f"head norms of {norms} weights do not fit heads of {d_head}")
    for tensor in (cache.keys, cache.values, rope.cos, rope.sin):
        if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
            raise KernelError("cache and rotations are used where they lie: they must be float32 and contiguous")
    return (n_ctx, d_query // d_head, n_kv_head, d_head, d_value, *norms, rope.cos.shape[1], form.has_adjacent_pairs)
