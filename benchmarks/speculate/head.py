"""Measure what an MTP head costs the backbone at the 122B's shape, beside a step's dense path. Used by
`bench_speculate`.

The head is one full-attention layer with 256 experts, all computed here, a joint projection, and the model's output
over 248,320 tokens; weights are random blocks in the types of a Q4_K_M file.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from backbone.engine.model.architectures import read_config
from backbone.engine.model.attention import Attention
from backbone.engine.model.batch import Step
from backbone.engine.model.expert_caller import ExpertCaller
from backbone.engine.model.kv_cache import SlotCache
from backbone.engine.model.layer import Layer
from backbone.engine.model.loader import DenseTensors
from backbone.engine.model.mtp_experts import MtpExperts
from backbone.engine.model.mtp_layer import ModelEnds, MtpLayer
from backbone.engine.ops.interface import KVLayer, RopeTable, Routing, Segment
from backbone.engine.ops.model_config import ModelConfig, RopeConfig
from backbone.engine.ops.stable_ops import StableOps
from benchmarks.shape.model import QUICK, RealShape, model_bytes, require_room, write_real_shape
from kvasir.experts import WeightMatrix
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.registry import kernel_for
from kvasir.slicing.expert_tensors import find_expert_tensors, layer_experts

N_LAYERS = 48  # of the model
ROWS = (1, 8)
POSITION = 1000  # tokens of each sequence before
_N_ROUNDS = 5
_SHAPE = replace(RealShape(), n_layer=1, interval=1, n_vocab=248_320)
_QUICK = replace(QUICK, n_layer=1, interval=1)


class _Elsewhere:
    """Experts that workers compute, at no cost here."""

    async def submit(self, _layer: int, rows: Tensor, routing: Routing) -> Tensor:
        return torch.zeros(*routing.expert_ids.shape, rows.shape[1])


@dataclass(frozen=True, slots=True)
class _World:
    """A head, its experts, and a cache with room for it."""

    head: MtpLayer
    cache: SlotCache
    ropes: Mapping[RopeConfig, RopeTable]
    experts: ExpertCaller


def head_ms(*, is_quick: bool) -> dict[str, dict[str, float]]:
    """CPU milliseconds by rows: `guess` the whole head, `follow` keys and values alone, `step` what it is beside.

    A step's dense path is taken for 48 layers as the head's own, without their experts, and the output: recurrent
    layers cost about as much. `share` is a guess by a step.
    """
    shape = _QUICK if is_quick else _SHAPE
    with tempfile.TemporaryDirectory() as folder:
        require_room(Path(folder), model_bytes(shape))
        path = write_real_shape(Path(folder) / "head.gguf", shape)
        with GGUFIndex.open(path) as index:
            world = _load(index, read_config(index.metadata))
            return _measure(world)


def _measure(world: _World) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {"guess": {}, "follow": {}, "step": {}, "share": {}}
    for n_rows in ROWS:
        values = _measure_rows(world, n_rows)
        for name, value in values.items():
            found[name][str(n_rows)] = round(value, 2)
        found["share"][str(n_rows)] = round(values["guess"] / values["step"], 3)
    return found


def _measure_rows(world: _World, n_rows: int) -> dict[str, float]:
    head, generator = world.head, torch.Generator().manual_seed(n_rows)
    segments = tuple(Segment(row, row, 1, POSITION) for row in range(n_rows))
    own = Step(segments, world.cache, world.ropes, world.experts)
    away = replace(own, experts=_Elsewhere())
    hidden = [torch.randn(n_rows, head.joint.n_out, generator=generator) for _ in range(_N_ROUNDS)]
    ids = [torch.randint(0, head.ends.embedding.n_out, (n_rows,), generator=generator) for _ in hidden]
    layer = _median_ms(lambda n: asyncio.run(head.layer.forward(hidden[n], away)))
    output = _median_ms(lambda n: head.ops.linear(hidden[n], head.ends.output))
    return {
        "guess": _median_ms(lambda n: asyncio.run(head.guess(ids[n], hidden[n], own))),
        "follow": _median_ms(lambda n: head.remember(ids[n], hidden[n], own)),
        "step": N_LAYERS * layer + output,
    }


def _median_ms(run: Callable[[int], object]) -> float:
    """CPU milliseconds of a call, after one that is not counted."""
    run(0)
    seconds = []
    for number in range(_N_ROUNDS):
        began = time.process_time()
        run(number)
        seconds.append(time.process_time() - began)
    return 1000 * statistics.median(seconds)


def _load(index: GGUFIndex, config: ModelConfig) -> _World:
    """The file's one layer as the layer of a head."""
    ops, d_model = StableOps(n_threads=1), config.d_model
    layer = Layer.load(DenseTensors(index, ops).below("blk.0."), config.layers[0], config, ops)
    if not isinstance(layer.mixer, Attention):
        raise TypeError("the file's layer has no attention")
    query = index.matrix("blk.0.attn_q.weight")  # its blocks do for the joint projection, which is as finely quantised
    row_bytes = query.data.size // query.n_out
    joint = WeightMatrix(query.quant_type, d_model, 2 * d_model, np.resize(query.data, 2 * d_model * row_bytes))
    output = ops.make_linear(index.matrix("output.weight"))
    norm = torch.ones(d_model)
    head = MtpLayer(
        ops=ops,
        norm_eps=config.norm_eps,
        ends=ModelEnds(index.matrix("token_embd.weight"), norm, output),
        token_norm=norm,
        hidden_norm=norm,
        joint=ops.make_linear(joint),
        layer=layer,
        attention=layer.mixer,
    )
    experts = layer_experts(index, find_expert_tensors(index, 1)[0])
    kernel = kernel_for([experts], 1)
    n_ctx = POSITION + 1
    cache = SlotCache(config, n_slot=max(ROWS), n_ctx=n_ctx, dtype=ops.dtype)
    state = cache.state(0)
    if isinstance(state, KVLayer):
        state.keys.normal_(0, 0.5)
        state.values.normal_(0, 0.5)
    ropes = {rope: RopeTable(rope, n_ctx, ops.dtype) for rope in config.ropes}
    return _World(head, cache, ropes, MtpExperts(kernel, kernel.load(experts)))
