"""The frames as data: one frozen dataclass a kind.

Both ends of an edge build and receive these; `wire.codec` turns them into bytes and back. Nothing here does I/O, and
nothing here judges whether a worker can compute what is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels.api import EncodedRows, Pairs, RowFormat
from kvasir.kernels.sums import Exponents, RowSums, Weights
from kvasir.wire.header import PROTOCOL_LIMITS, Limits

MAX_TEXT_BYTES = 1024
HalfRows = npt.NDArray[np.float16]


class Role(IntEnum):
    """Who speaks: the role byte is the letter's ASCII code."""

    BACKBONE = ord("B")
    WORKER = ord("W")


class ReplyType(IntEnum):
    """In which type a backbone wants results. The numbers are those of `WireType`."""

    F32 = 1
    F16 = 3


class RefuseCode(IntEnum):
    """Which part of a hello disagreed."""

    VERSION = 1
    ROLE = 2
    MODEL = 3
    KERNEL = 4
    TOKEN = 5
    FULL = 6
    DEADLINE = 7
    MALFORMED = 8
    STOPPING = 9


class FaultCode(IntEnum):
    """Why a dispatch was not computed. PROTOCOL and GONE have request number 0 and end the edge."""

    PROTOCOL = 1
    UNKNOWN_LAYER = 2
    BAD_IDS = 3
    BAD_ROWS = 4
    TOO_LARGE = 5
    INTERNAL = 6
    BUSY = 7
    GONE = 8


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of the side that asks. Fingerprints are 64 hex digits; the token is empty on a private network."""

    role: Role
    model_fingerprint: str
    kernel_fingerprint: str
    kernel: str
    limits: Limits = PROTOCOL_LIMITS
    name: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The worker's answer to a hello that it accepts: what it holds and what it takes.

    Ranges ascend by layer and start and do not overlap; local ids of a layer count through its ranges in order.
    """

    model_fingerprint: str
    kernel_fingerprint: str
    kernel: str
    row_format: RowFormat
    d_model: int
    ranges: tuple[ExpertRange, ...]
    limits: Limits = PROTOCOL_LIMITS
    name: str = ""


@dataclass(frozen=True, slots=True)
class Refuse:
    """The worker's answer to a hello that it does not accept; it closes the edge after it."""

    code: RefuseCode
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class SumOrder:
    """Weights and exponents: a worker answers with one row of sums for each row (docs/reference/kx1.md, step 7)."""

    weights: Weights  # [n_pairs] what each output is multiplied by
    exponents: Exponents  # [n_rows] the unit of each row's integers is 2^exponent


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """Rows and what to compute: expert `pair_ids[i]` (local id) of row `pair_rows[i]`, for every pair i."""

    request: int
    layer: int
    row_format: RowFormat
    d_model: int
    rows: EncodedRows  # [n_rows, row bytes]
    pair_rows: Pairs  # [n_pairs]
    pair_ids: Pairs  # [n_pairs]
    reply: ReplyType = ReplyType.F32
    has_more: bool = False  # another one of the same layer follows at once; the worker may wait for it
    sums: SumOrder | None = None  # answer with a SumResult


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The answer to the Dispatch of the same number: one output row per pair, in the order of the pairs."""

    request: int
    layer: int
    outputs: FloatRows | HalfRows  # [n_pairs, d_model]


@dataclass(frozen=True, slots=True, eq=False)
class SumResult:
    """The answer to a Dispatch with a SumOrder: one row of integers for each of its rows."""

    request: int
    layer: int
    n_pairs: int  # of the Dispatch
    sums: RowSums  # [n_rows, d_model]


@dataclass(frozen=True, slots=True)
class Fault:
    """The answer to a Dispatch that was not computed; with request 0, the reason why the edge ends."""

    request: int
    code: FaultCode
    message: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The worker asks for no new dispatches for some milliseconds; 0 ends a pause."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Goaway:
    """The sender will stop: no new dispatches, those in flight are still answered."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Are you there? Answered at once by a Pong with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to the Ping of the same number."""

    number: int


Frame = Hello | Welcome | Refuse | Dispatch | Result | SumResult | Fault | Pause | Goaway | Ping | Pong


def has_controls(text: str) -> bool:
    """Whether a text holds control characters (U+0000 to U+001F, U+007F to U+009F) or lone surrogates."""
    return any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in text)


def clipped(message: str) -> str:
    """The message as it may travel: no control characters, at most `MAX_TEXT_BYTES` bytes of UTF-8."""
    clean = "".join(" " if has_controls(c) else c for c in message)
    return clean.encode("utf-8")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def f16_reply(outputs: FloatRows) -> tuple[FloatRows, bool]:
    """Outputs as a reply in f16 carries them: f32 [n, d_model], and whether all of them fit.

    A row of which every value is finite in f16 is rounded to f16; another row stays as it is, and a frame that holds
    one goes as f32. So a row's value depends on itself alone, never on its company in the frame. The backbone
    rounds what it computes itself by this same function.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = outputs.astype(np.float16).astype(np.float32)
    fits = np.isfinite(rounded).all(axis=1, keepdims=True)
    if fits.all():
        return rounded, True
    return np.where(fits, rounded, outputs), False
