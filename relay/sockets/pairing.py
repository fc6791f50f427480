"""Who may work with whom: pure decisions over two hellos.

`hub` asks when a socket joins. A worker is paired with every backbone that has the same model and kernel; tokens
were judged before.
"""

from __future__ import annotations

from collections.abc import Collection

from kvasir.wire.frames import Hello, Refuse, RefuseCode, Role


def disagreement(backbone: Hello, worker: Hello) -> Refuse | None:
    """Why these two cannot work together, naming the part and what both have; None when they can."""
    if backbone.model_fingerprint != worker.model_fingerprint:
        return Refuse(
            RefuseCode.MODEL,
            f"model fingerprint: the backbone has {backbone.model_fingerprint}, the worker {worker.model_fingerprint}",
        )
    if backbone.kernel_fingerprint != worker.kernel_fingerprint:
        return Refuse(
            RefuseCode.KERNEL,
            f"kernel fingerprint: the backbone has {backbone.kernel} {backbone.kernel_fingerprint}, "
            f"the worker {worker.kernel} {worker.kernel_fingerprint}",
        )
    return None


def worker_refusal(worker: Hello, backbones: Collection[Hello]) -> Refuse | None:
    """Why this worker is of no use to any backbone that is here; None when it is, or when none is here yet.

    The reason names the backbone that comes nearest: one with the same model before any other.
    """
    reasons = [disagreement(backbone, worker) for backbone in backbones]
    if not reasons or None in reasons:
        return None
    by_nearness = {RefuseCode.KERNEL: 0, RefuseCode.MODEL: 1}
    return min((reason for reason in reasons if reason is not None), key=lambda reason: by_nearness[reason.code])


def sides(one: Hello, other: Hello) -> tuple[Hello, Hello] | None:
    """(backbone, worker) of two hellos, or None when both have the same role."""
    if one.role is other.role:
        return None
    return (one, other) if one.role is Role.BACKBONE else (other, one)
