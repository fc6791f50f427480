"""The frames as data: one frozen dataclass for each kind.

Both ends of an edge build and receive them; `wire.codec` turns them into bytes and back. Whether a worker can compute a
dispatch is checked by the worker, not here.
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
    """The side that sends. The role byte is the letter's ASCII code."""

    BACKBONE = ord("B")
    WORKER = ord("W")


class ReplyType(IntEnum):
    """The type in which a backbone asks for results, numbered as in `WireType`."""

    F32 = 1
    F16 = 3


class RefuseCode(IntEnum):
    """Why a hello was refused."""

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
    """The first frame on an edge. Fingerprints are 64 hex digits; the token is empty on a private network."""

    role: Role
    model_fingerprint: str
    kernel_fingerprint: str
    kernel: str
    limits: Limits = PROTOCOL_LIMITS
    name: str = ""
    token: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Welcome:
    """The worker's answer to a hello that it accepts: its expert ranges, row format and limits.

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
    """The worker's answer to a hello that it does not accept; it then closes the edge."""

    code: RefuseCode
    message: str


@dataclass(frozen=True, slots=True, eq=False)
class SumOrder:
    """Asks for one row of integers for each row instead of one output for each pair (docs/reference/kx1.md, step 7)."""

    weights: Weights  # [n_pairs] the factor of each output
    exponents: Exponents  # [n_rows] the unit of each row's integers is 2^exponent


@dataclass(frozen=True, slots=True, eq=False)
class Dispatch:
    """Rows to compute: expert `pair_ids[i]` (a local id) on row `pair_rows[i]`, for every pair i."""

    request: int
    layer: int
    row_format: RowFormat
    d_model: int
    rows: EncodedRows  # [n_rows, row bytes]
    pair_rows: Pairs  # [n_pairs]
    pair_ids: Pairs  # [n_pairs]
    reply: ReplyType = ReplyType.F32
    has_more: bool = False  # another of the same layer follows at once; the worker may wait for it
    sums: SumOrder | None = None  # answer with a SumResult


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """The answer to the Dispatch of the same number: one output row for each pair, in the order of the pairs."""

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
    """The answer to a Dispatch that was not computed or, with request 0, the reason why the edge ends."""

    request: int
    code: FaultCode
    message: str


@dataclass(frozen=True, slots=True)
class Pause:
    """The worker asks for no new dispatches for this many milliseconds; 0 ends a pause."""

    milliseconds: int


@dataclass(frozen=True, slots=True)
class Goaway:
    """The sender is about to stop: it takes no new dispatches and still answers those in flight."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a sign of life. Answered at once by a Pong with the same number."""

    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to the Ping of the same number."""

    number: int


Frame = Hello | Welcome | Refuse | Dispatch | Result | SumResult | Fault | Pause | Goaway | Ping | Pong


def has_controls(text: str) -> bool:
    """Return whether a text has control characters (U+0000 to U+001F, U+007F to U+009F) or lone surrogates."""
    return any(c < " " or "\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in text)


def clipped(message: str) -> str:
    """Return the message without control characters and cut to `MAX_TEXT_BYTES` bytes of UTF-8, as a frame takes it."""
    clean = "".join(" " if has_controls(c) else c for c in message)
    return clean.encode("utf-8")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")


def f16_reply(outputs: FloatRows) -> tuple[FloatRows, bool]:
    """Return outputs as a reply in f16 carries them, f32 [n, d_model], and whether all of them fit.

    A row whose values are all finite in f16 is rounded to f16; any other row stays as it is, and a frame that has one
    is sent as f32. So a row's values never depend on the other rows of its frame. The backbone rounds what it computes
    itself with this function too.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = outputs.astype(np.float16).astype(np.float32)
    fits = np.isfinite(rounded).all(axis=1, keepdims=True)
    if fits.all():
        return rounded, True
    return np.where(fits, rounded, outputs), False
