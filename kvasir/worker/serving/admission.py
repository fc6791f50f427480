"""Admission of backbones and requests: pure checks of frames against a worker's holdings.

`connection` calls them before anything is queued. The values inside rows are checked by the kernel, before native code
runs.
"""

from __future__ import annotations

from kvasir.errors import KernelError
from kvasir.kernels.api import Pairs
from kvasir.kernels.sums import check_sum_request
from kvasir.wire.frames import Dispatch, Fault, FaultCode, Hello, Refuse, RefuseCode, Role, clipped
from kvasir.wire.header import Limits
from kvasir.wire.split import answer_bytes
from kvasir.worker.serving.holdings import Holdings


def hello_refusal(hello: Hello, holdings: Holdings) -> Refuse | None:
    """Return a refusal of this hello that names what disagrees and both values, or None if it is welcome."""
    if hello.role is not Role.BACKBONE:
        return Refuse(RefuseCode.ROLE, f"role is {hello.role.name}, this worker serves BACKBONE")
    if hello.model_fingerprint != holdings.model_fingerprint:
        return Refuse(
            RefuseCode.MODEL,
            f"model fingerprint: the backbone has {hello.model_fingerprint}, "
            f"this worker's slice is of {holdings.model_fingerprint}",
        )
    kernel = holdings.kernel
    if hello.kernel_fingerprint != kernel.fingerprint:
        return Refuse(
            RefuseCode.KERNEL,
            f"kernel fingerprint: the backbone has {hello.kernel} {hello.kernel_fingerprint}, "
            f"this worker has {kernel.name} {kernel.fingerprint}",
        )
    return None


def dispatch_fault(dispatch: Dispatch, holdings: Holdings, peer: Limits) -> Fault | None:
    """Return a fault for a dispatch that cannot be computed, or None. `peer` are the backbone's limits."""
    loaded = holdings.layers.get(dispatch.layer)
    if loaded is None:
        return Fault(
            dispatch.request,
            FaultCode.UNKNOWN_LAYER,
            f"layer {dispatch.layer} is not held here; {_shown(sorted(holdings.layers))} are",
        )
    wanted = (holdings.kernel.row_format, loaded.d_model)
    if (dispatch.row_format, dispatch.d_model) != wanted:
        return Fault(
            dispatch.request,
            FaultCode.BAD_ROWS,
            f"rows are {dispatch.row_format.name} of {dispatch.d_model} values, "
            f"{wanted[0].name} of {wanted[1]} are needed",
        )
    large = _too_large(dispatch, peer)
    if large:
        return Fault(dispatch.request, FaultCode.TOO_LARGE, large)
    wrong = _outside("row number", dispatch.pair_rows, len(dispatch.rows))
    wrong = wrong or _outside("local id", dispatch.pair_ids, loaded.n_expert)
    if wrong:
        return Fault(dispatch.request, FaultCode.BAD_IDS, wrong)
    try:
        if dispatch.sums is not None:
            order = dispatch.sums
            check_sum_request(order.weights, dispatch.pair_rows, order.exponents, len(dispatch.rows))
    except KernelError as error:
        return Fault(dispatch.request, FaultCode.BAD_ROWS, clipped(str(error)))
    return None


def answer_bytes_of(dispatch: Dispatch) -> int:
    """Return the most payload bytes that the answer to a dispatch may have."""
    is_sums = dispatch.sums is not None
    return answer_bytes(len(dispatch.rows), len(dispatch.pair_ids), dispatch.d_model, is_sums=is_sums)


def _too_large(dispatch: Dispatch, peer: Limits) -> str | None:
    n_pairs, n_bytes = len(dispatch.pair_ids), answer_bytes_of(dispatch)
    n_rows = len(dispatch.rows) if dispatch.sums is not None else 0  # outputs count as pairs
    if n_bytes <= peer.max_payload_bytes and n_pairs <= peer.max_pairs and n_rows <= peer.max_rows:
        return None
    return (
        f"the answer would have {n_pairs} pairs and {n_rows} rows of sums in {n_bytes} bytes; the backbone takes "
        f"{peer.max_pairs} pairs and {peer.max_rows} rows in {peer.max_payload_bytes} bytes"
    )


def _outside(what: str, numbers: Pairs, count: int) -> str | None:
    least, most = int(numbers.min()), int(numbers.max())
    if least >= 0 and most < count:
        return None
    # the wire's numbers are unsigned: from 2^31 on they read as negative
    return f"{what} {most if least >= 0 else least % 2**32} does not exist, there are {count}"


def _shown(layers: list[int]) -> str:
    return ", ".join(map(str, layers)) if len(layers) <= 12 else f"{layers[0]} to {layers[-1]} ({len(layers)} layers)"
