"""Whether all slots of a model fit in the machine's memory. A backbone's start asks where no budget is set.

It only says so, and never refuses or reduces: a slot takes memory as it is used, and nobody knows how many will be.
"""

from __future__ import annotations

from pathlib import Path

from kvasir.byte_sizes import format_size

MEMINFO = Path("/proc/meminfo")


def available_memory(meminfo: Path = MEMINFO) -> int | None:
    """Bytes that new work can have without swapping, as the kernel estimates; None where that is not known.

    Of the machine: the limit of a container is not looked at.
    """
    try:
        for line in meminfo.read_text(encoding="ascii").splitlines():
            key, _, value = line.partition(":")
            if key == "MemAvailable":
                return int(value.split()[0]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def too_many_slots(slot_bytes: int, n_slot: int, n_ctx: int, available: int | None) -> str | None:
    """What to tell the operator when `n_slot` full slots of `slot_bytes` take more than is available, else None."""
    needed = n_slot * slot_bytes
    if available is None or needed <= available:
        return None
    return (
        f"{n_slot} slots of {n_ctx} tokens take {format_size(needed)} when all are full ({format_size(slot_bytes)} "
        f"each), and {format_size(available)} of memory are available: set KVASIR_KV_BYTES to what they may take, or "
        "fewer KVASIR_SLOTS, or a shorter KVASIR_CTX"
    )
