"""The wire's codec: frames to bytes and back, without I/O.

Both ends of an edge use it, over TCP and through a relay. Any bytes either decode or raise WireError; nothing larger
than the limits is allocated; tensors are views over the received bytes, except sums, which travel packed.
docs/reference/wire.md has the byte tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kvasir.errors import KernelError, WireError
from kvasir.kernels.api import RowFormat
from kvasir.kernels.sums import pack_sums, unpack_sums
from kvasir.wire.frames import Dispatch, Frame, ReplyType, Result, SumOrder, SumResult
from kvasir.wire.header import (
    CHECKED_BYTES,
    FLAG_MORE,
    FLAG_REPLY_F16,
    FLAG_SUMS,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    PROTOCOL_LIMITS,
    Buffer,
    Header,
    Kind,
    Limits,
    WireType,
    checksum,
    crc32,
    encoded_row_bytes,
    unpack_header,
)
from kvasir.wire.payloads import pack_payload, unpack_payload

STAGING_BYTES = 64 * 1024


def encode(frame: Frame, limits: Limits = PROTOCOL_LIMITS) -> list[Buffer]:
    """Return the frame as buffers to send in order; tensors are not copied.

    `limits` are the receiver's. Raises WireError for a frame that exceeds them.
    """
    if isinstance(frame, Dispatch):
        header, payload = _dispatch_parts(frame)
    elif isinstance(frame, Result):
        header, payload = _result_parts(frame)
    elif isinstance(frame, SumResult):
        header, payload = _sum_result_parts(frame)
    else:
        kind, request, data = pack_payload(frame)
        header, payload = Header(kind, request=request, payload_bytes=len(data)), [data] if data else []
    header.check(limits)
    return [header.pack(payload), *payload]


def decode(data: Buffer, limits: Limits = PROTOCOL_LIMITS) -> Frame:
    """Return the frame that `data` holds. Tensors are views over `data`. Raises WireError unless it is exactly one."""
    view = memoryview(data).cast("B")
    if len(view) < HEADER_BYTES:
        raise WireError(f"{len(view)} bytes are no frame: the header alone has {HEADER_BYTES}")
    header, check = unpack_header(view, limits)
    if len(view) != HEADER_BYTES + header.payload_bytes:
        raise WireError(f"frame of {len(view)} bytes, its header says {HEADER_BYTES + header.payload_bytes}")
    payload = view[HEADER_BYTES:]
    _check_sum(header, check, checksum(view[:CHECKED_BYTES], [payload]))
    return _frame(header, payload)


class FrameDecoder:
    """Decodes the frames of a byte stream.

    Write the next bytes to `writable()` and report their number to `advance`. Payloads that do not fit the 64 KiB
    staging buffer are received straight into their own memory. After a WireError the stream cannot be read further.
    `limits` and `max_payload_bytes` (of frames of any kind) may be raised between frames, as after a handshake.
    """

    def __init__(self, limits: Limits = PROTOCOL_LIMITS, max_payload_bytes: int = MAX_PAYLOAD_BYTES) -> None:
        self.limits = limits
        self.max_payload_bytes = max_payload_bytes
        self._staging = bytearray(STAGING_BYTES)
        self._staged = 0  # bytes in staging that belong to no finished frame
        self._header: Header | None = None  # of the large payload that is being received
        self._check = 0
        self._crc = 0
        self._payload = memoryview(b"")
        self._received = 0
        self.failure: WireError | None = None  # why the stream cannot be read further

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and its end has not arrived."""
        return self._staged > 0 or self._header is not None

    def feed(self, data: Buffer) -> list[Frame]:
        """Return the frames that `data` completes. Raises WireError; the frames before the bad one are then lost."""
        view, frames = memoryview(data).cast("B"), list[Frame]()
        while view:
            space = self.writable()
            n_bytes = min(len(space), len(view))
            space[:n_bytes] = view[:n_bytes]
            frames += self.advance(n_bytes)
            if self.failure is not None:
                raise self.failure
            view = view[n_bytes:]
        return frames

    def writable(self) -> memoryview:
        """Return the memory for the next bytes of the stream, never empty. Raises WireError after a failure."""
        if self.failure is not None:
            raise self.failure
        if self._header is not None:
            return self._payload[self._received :]
        return memoryview(self._staging)[self._staged :]

    def advance(self, n_bytes: int) -> list[Frame]:
        """Return the frames that are complete now that `n_bytes` were written to `writable()`.

        Never raises: the frames before a bad one are returned, and `failure` holds the error of the bad one.
        """
        frames: list[Frame] = []
        try:
            if self._header is not None:
                self._advance_payload(self._header, n_bytes, frames)
            else:
                self._advance_staging(n_bytes, frames)
        except WireError as error:
            self.failure = error
        return frames

    def _advance_payload(self, header: Header, n_bytes: int, frames: list[Frame]) -> None:
        arrived = self._payload[self._received : self._received + n_bytes]
        self._crc = crc32(arrived, self._crc)  # while the bytes are still in cache
        self._received += n_bytes
        if self._received < len(self._payload):
            return
        payload, self._payload, self._header = self._payload, memoryview(b""), None
        _check_sum(header, self._check, self._crc)
        frames.append(_frame(header, payload))

    def _advance_staging(self, n_bytes: int, frames: list[Frame]) -> None:
        at, end = 0, self._staged + n_bytes
        staged = memoryview(self._staging)[:end]
        while end - at >= HEADER_BYTES:
            header, check = unpack_header(staged[at:], self.limits)
            if header.payload_bytes > self.max_payload_bytes:
                raise WireError(
                    f"payload of {header.payload_bytes} bytes is over the limit of {self.max_payload_bytes}"
                )
            start, stop = at + HEADER_BYTES, at + HEADER_BYTES + header.payload_bytes
            if stop <= end:
                payload = memoryview(bytearray(staged[start:stop]))  # a copy: staging is used again
                _check_sum(header, check, checksum(staged[at : at + CHECKED_BYTES], [payload]))
                frames.append(_frame(header, payload))
                at = stop
            elif HEADER_BYTES + header.payload_bytes > STAGING_BYTES:
                self._start_payload(header, check, staged[at:end])
                at = end
            else:
                break
        self._staged = end - at
        if at:
            self._staging[: self._staged] = bytes(staged[at:end])

    def _start_payload(self, header: Header, check: int, so_far: memoryview) -> None:
        arrived = so_far[HEADER_BYTES:]
        # numpy maps no page before it is written: a sender that announces bytes and sends none costs no memory
        self._payload = np.empty(header.payload_bytes, np.uint8).data
        self._payload[: len(arrived)] = arrived
        self._crc = checksum(so_far[:CHECKED_BYTES], [arrived])
        self._received, self._header, self._check = len(arrived), header, check


def _check_sum(header: Header, said: int, is_: int) -> None:
    if said != is_:
        raise WireError(f"{header.kind.name} frame says checksum {said:#010x}, its bytes have {is_:#010x}")


def _view(array: npt.NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _dispatch_parts(frame: Dispatch) -> tuple[Header, list[Buffer]]:
    n_pairs, width = len(frame.pair_ids), encoded_row_bytes(frame.row_format, frame.d_model)
    if frame.pair_rows.shape != (n_pairs,) or frame.pair_ids.shape != (n_pairs,):
        raise WireError(f"pairs have shapes {frame.pair_rows.shape} and {frame.pair_ids.shape}, [n_pairs] is needed")
    if frame.rows.ndim != 2 or frame.rows.shape[1] != width or frame.rows.dtype != np.uint8:
        raise WireError(f"rows are {frame.rows.dtype} {frame.rows.shape}, uint8 [n_rows, {width}] is needed")
    pairs = np.empty((2, n_pairs), "<i4")
    pairs[0], pairs[1] = frame.pair_rows, frame.pair_ids
    order = [] if frame.sums is None else _order_parts(frame.sums, n_pairs, len(frame.rows))
    header = Header(
        Kind.DISPATCH,
        WireType(frame.row_format),
        (FLAG_REPLY_F16 if frame.reply is ReplyType.F16 else 0)
        | (FLAG_MORE if frame.has_more else 0)
        | (FLAG_SUMS if frame.sums is not None else 0),
        frame.request,
        frame.layer,
        len(frame.rows),
        n_pairs,
        frame.d_model,
        pairs.nbytes + sum(map(len, order)) + frame.rows.nbytes,
    )
    return header, [_view(pairs), *order, _view(frame.rows)]


def _order_parts(order: SumOrder, n_pairs: int, n_rows: int) -> list[Buffer]:
    if order.weights.shape != (n_pairs,) or order.exponents.shape != (n_rows,):
        shapes = f"{order.weights.shape} and {order.exponents.shape}"
        raise WireError(f"weights and exponents have shapes {shapes}, [n_pairs] and [n_rows] is needed")
    if order.weights.dtype != np.float32 or order.exponents.dtype != np.int32:
        raise WireError(f"weights are {order.weights.dtype}, exponents {order.exponents.dtype}; f32 and i32 is needed")
    return [_view(order.weights.astype("<f4", copy=False)), _view(order.exponents.astype("<i4", copy=False))]


def _result_parts(frame: Result) -> tuple[Header, list[Buffer]]:
    outputs = frame.outputs
    if outputs.ndim != 2 or outputs.dtype not in (np.float32, np.float16):
        raise WireError(f"outputs are {outputs.dtype} {outputs.shape}, f32 or f16 [n_pairs, d_model] is needed")
    wire_type = WireType.F32 if outputs.dtype == np.float32 else WireType.F16
    n_pairs, d_model = outputs.shape
    header = Header(Kind.RESULT, wire_type, 0, frame.request, frame.layer, 0, n_pairs, d_model, outputs.nbytes)
    return header, [_view(outputs.astype(outputs.dtype.newbyteorder("<"), copy=False))]


def _sum_result_parts(frame: SumResult) -> tuple[Header, list[Buffer]]:
    if frame.sums.ndim != 2 or frame.sums.dtype != np.int32:
        raise WireError(f"sums are {frame.sums.dtype} {frame.sums.shape}, i32 [n_rows, d_model] is needed")
    try:
        packed = pack_sums(frame.sums)
    except KernelError as error:
        raise WireError(str(error)) from error
    n_rows, d_model = frame.sums.shape
    header = Header(
        Kind.RESULT, WireType.SUMS, 0, frame.request, frame.layer, n_rows, frame.n_pairs, d_model, len(packed)
    )
    return header, [_view(packed)]


def _frame(header: Header, payload: memoryview) -> Frame:
    if header.wire_type is WireType.SUMS:
        try:
            sums = unpack_sums(np.frombuffer(payload, np.uint8), header.n_rows, header.d_model)
        except KernelError as error:
            raise WireError(str(error)) from error
        return SumResult(header.request, header.layer, header.n_pairs, sums)
    if header.kind is Kind.RESULT:
        dtype = "<f2" if header.wire_type is WireType.F16 else "<f4"
        outputs = np.frombuffer(payload, dtype).reshape(header.n_pairs, header.d_model)
        return Result(header.request, header.layer, outputs)
    if header.kind is Kind.DISPATCH:
        pairs = np.frombuffer(payload, "<i4", 2 * header.n_pairs)
        order, start = None, pairs.nbytes
        if header.flags & FLAG_SUMS:
            weights = np.frombuffer(payload, "<f4", header.n_pairs, start)
            order = SumOrder(weights, np.frombuffer(payload, "<i4", header.n_rows, start + weights.nbytes))
            start += weights.nbytes + order.exponents.nbytes
        rows = np.frombuffer(payload, np.uint8, offset=start)
        return Dispatch(
            header.request,
            header.layer,
            RowFormat(header.wire_type),
            header.d_model,
            rows.reshape(header.n_rows, -1),
            pairs[: header.n_pairs],
            pairs[header.n_pairs :],
            ReplyType.F16 if header.flags & FLAG_REPLY_F16 else ReplyType.F32,
            bool(header.flags & FLAG_MORE),
            order,
        )
    return unpack_payload(header, payload)


def join(buffers: Sequence[Buffer]) -> bytes:
    """Return the buffers of one frame as one message, for links that send whole messages."""
    return b"".join(buffers)
