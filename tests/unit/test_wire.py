"""The codec: whatever is encoded decodes to the same, whatever else arrives is a WireError, and limits hold."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.errors import WireError, WireVersionError
from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.wire.codec import STAGING_BYTES, FrameDecoder, decode, encode, join
from kvasir.wire.frames import (
    MAX_TEXT_BYTES,
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Goaway,
    Hello,
    Pause,
    Ping,
    Refuse,
    RefuseCode,
    ReplyType,
    Result,
    Role,
    SumOrder,
    SumResult,
    Welcome,
    clipped,
    f16_reply,
)
from kvasir.wire.header import (
    HEADER,
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_ROWS,
    PROTOCOL_LIMITS,
    Header,
    Kind,
    Limits,
    WireType,
    sums_bytes,
)
from tests.unit.wire_frames_strategy import FRAMES

FINGERPRINT = "0f" * 32


def dispatch(n_rows: int = 1, n_pairs: int = 1, d_model: int = 4, row_format: RowFormat = RowFormat.F32) -> Dispatch:
    width = 4 * d_model if row_format is RowFormat.F32 else d_model // 256 * 261
    pairs = np.zeros(n_pairs, np.int32)
    return Dispatch(1, 0, row_format, d_model, np.zeros((n_rows, width), np.uint8), pairs, pairs)


def dispatch_for_sums(n_rows: int = 1, n_pairs: int = 1, d_model: int = 256, **order: object) -> Dispatch:
    plain = dispatch(n_rows, n_pairs, d_model, RowFormat.KX1)
    values = {"weights": np.ones(n_pairs, np.float32), "exponents": np.zeros(n_rows, np.int32)} | order
    return dataclasses.replace(plain, sums=SumOrder(**values))  # type: ignore[arg-type]


def sum_result(n_rows: int = 1, n_pairs: int = 1, d_model: int = 256, value: int = 0) -> SumResult:
    return SumResult(1, 0, n_pairs, np.full((n_rows, d_model), value, np.int32))


def with_checksum(data: bytes) -> bytes:
    """The frame with the checksum that belongs to its bytes: what a hostile sender would write."""
    crc = zlib.crc32(data[HEADER_BYTES:], zlib.crc32(data[:32]))
    return data[:32] + struct.pack("<I", crc) + data[HEADER_BYTES:]


def test_it_works() -> None:
    frame = Ping(5)
    assert decode(join(encode(frame))) == frame
    assert FrameDecoder().feed(join(encode(frame))) == [frame]


@given(FRAMES)
@settings(max_examples=200, deadline=None)
def test_frames_survive_encoding(frame: Frame) -> None:
    data = join(encode(frame))
    again = decode(data)
    assert type(again) is type(frame)
    if isinstance(frame, Dispatch | Result | SumResult):  # tensors: there is one way to write them
        assert join(encode(again)) == data
    else:
        assert again == frame


@given(st.lists(FRAMES, min_size=1, max_size=5), st.lists(st.integers(1, 300), min_size=1, max_size=20))
@settings(max_examples=80, deadline=None)
def test_a_stream_may_be_cut_anywhere(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(join(encode(frame)) for frame in frames)
    decoder, found, at = FrameDecoder(), list[Frame](), 0
    while at < len(stream):
        step = cuts[at % len(cuts)]
        found += decoder.feed(stream[at : at + step])
        at += step
    assert b"".join(join(encode(frame)) for frame in found) == stream
    assert not decoder.is_mid_frame


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_decode_or_raise_wire_error(data: bytes) -> None:
    for candidate in (data, b"KVSR\x02" + data):
        try:
            frame = decode(candidate)
        except WireError:
            continue
        assert join(encode(frame)) == candidate


@given(FRAMES, st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_frames_decode_or_raise_wire_error(frame: Frame, data: st.DataObject) -> None:
    damaged = bytearray(join(encode(frame)))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    for candidate in (bytes(damaged), with_checksum(bytes(damaged))):
        try:
            again = decode(candidate)
        except WireError:
            continue
        if candidate[4] == 2:  # a Refuse of another version is readable, and written again as ours
            assert join(encode(again)) == candidate


@given(FRAMES, st.data())
@settings(max_examples=100, deadline=None)
def test_every_flipped_bit_is_found(frame: Frame, data: st.DataObject) -> None:
    damaged = bytearray(join(encode(frame)))
    at = data.draw(st.integers(0, len(damaged) * 8 - 1))
    damaged[at // 8] ^= 1 << at % 8
    with pytest.raises(WireError):
        decode(damaged)


def test_every_truncation_is_refused_or_waits() -> None:
    data = join(encode(Hello(Role.BACKBONE, FINGERPRINT, FINGERPRINT, "kx1", name="n")))
    for n_bytes in range(len(data)):
        with pytest.raises(WireError):
            decode(data[:n_bytes])
        decoder = FrameDecoder()
        assert decoder.feed(data[:n_bytes]) == []
        assert decoder.is_mid_frame == (n_bytes > 0)


def test_tensors_are_views_of_what_was_received() -> None:
    data = bytearray(join(encode(dispatch(n_rows=3, n_pairs=2))))
    frame = decode(data)
    assert isinstance(frame, Dispatch)
    data[-1] = 7
    assert frame.rows[2, -1] == 7
    assert np.shares_memory(frame.pair_rows, np.frombuffer(data, np.uint8))


def test_encoding_does_not_copy_tensors() -> None:
    outputs = np.zeros((4, 8), np.float32)
    buffers = encode(Result(1, 0, outputs))
    assert np.shares_memory(np.frombuffer(buffers[-1], np.uint8), outputs)


def test_large_payloads_are_received_in_place_and_stay_good() -> None:
    first, second = (Result(i, 0, np.full((64, 1024), i, np.float32)) for i in (1, 2))
    decoder, stream = FrameDecoder(), join(encode(first)) + join(encode(second)) + join(encode(Ping(1)))
    space = decoder.writable()
    assert len(space) == STAGING_BYTES
    found, at = list[Frame](), 0
    while at < len(stream):
        space = decoder.writable()
        n_bytes = min(len(space), len(stream) - at)
        space[:n_bytes] = stream[at : at + n_bytes]
        found += decoder.advance(n_bytes)
        at += n_bytes
    assert [type(frame) for frame in found] == [Result, Result, Ping]
    for frame, expected in zip(found, (first, second), strict=False):
        assert isinstance(frame, Result)
        assert frame.outputs.tobytes() == expected.outputs.tobytes()


# Limits, at both ends, one to either side


@pytest.mark.parametrize("side", ["sender", "receiver"])
@pytest.mark.parametrize(
    ("frame", "limits", "name"),
    [
        (dispatch(n_rows=3), Limits(max_rows=3), "max_rows"),
        (dispatch(n_pairs=3), Limits(max_pairs=3), "max_pairs"),
        (Result(1, 0, np.zeros((3, 2), np.float32)), Limits(max_pairs=3), "max_pairs"),
        (dispatch(), Limits(max_payload_bytes=24), "max_payload_bytes"),
        (Result(1, 0, np.zeros((3, 2), np.float16)), Limits(max_payload_bytes=12), "max_payload_bytes"),
        (dispatch_for_sums(), Limits(max_payload_bytes=261 + 16), "max_payload_bytes"),
        (sum_result(3), Limits(max_rows=3), "max_rows"),
        (sum_result(1, 3), Limits(max_pairs=3), "max_pairs"),
        (
            sum_result(3),
            Limits(max_payload_bytes=3 * 1025),
            "max_payload_bytes",
        ),  # not the 3 that it has
        (sum_result(3, value=2**31 - 1), Limits(max_payload_bytes=3 * 1025), "max_payload_bytes"),
    ],
)
def test_limits_hold_to_the_unit_at_both_ends(frame: Frame, limits: Limits, name: str, side: str) -> None:
    smaller = Limits(**{name: getattr(limits, name) - 1})
    data = join(encode(frame, limits))
    assert type(decode(data, limits)) is type(frame)
    with pytest.raises(WireError, match=str(getattr(smaller, name))):
        if side == "sender":
            encode(frame, smaller)
        else:
            FrameDecoder(smaller).feed(data)


def test_protocol_limits_hold_to_the_unit() -> None:
    assert len(join(encode(Result(1, 0, np.zeros((2048, 1024), np.float32))))) == HEADER_BYTES + MAX_PAYLOAD_BYTES
    for frame in (
        Result(1, 0, np.zeros((2049, 1024), np.float32)),
        dispatch(n_rows=MAX_ROWS + 1),
        dispatch(n_pairs=65_537),
        dispatch(d_model=65_537),
        sum_result(683, d_model=3072),
        Goaway("x" * (MAX_TEXT_BYTES + 1)),
    ):
        with pytest.raises(WireError):
            encode(frame)
    encode(dispatch(n_rows=MAX_ROWS))
    encode(dispatch(n_pairs=65_536))
    encode(dispatch(d_model=65_536))
    encode(sum_result(682, d_model=3072))
    encode(Goaway("x" * MAX_TEXT_BYTES))


def test_a_control_frame_has_a_smaller_limit() -> None:
    def header(payload_bytes: int) -> bytes:
        return HEADER.pack(b"KVSR", 2, Kind.WELCOME, 0, 0, 0, 0, 0, 0, 0, payload_bytes, 0)

    assert FrameDecoder().feed(header(2**20)) == []
    with pytest.raises(WireError, match="1048577"):
        FrameDecoder().feed(header(2**20 + 1))


def test_limits_of_tensors_do_not_hold_for_other_frames() -> None:
    frame = Goaway("longer than a byte")
    assert decode(join(encode(frame, Limits(1, 1, 1, 1))), Limits(1, 1, 1, 1)) == frame


def test_a_decoder_for_strangers_takes_small_frames_only() -> None:
    for frame in (Goaway("123456"), dispatch()):
        data = join(encode(frame))
        (again,) = FrameDecoder(max_payload_bytes=len(data) - HEADER_BYTES).feed(data)
        assert type(again) is type(frame)
        with pytest.raises(WireError, match="over the limit"):
            FrameDecoder(max_payload_bytes=len(data) - HEADER_BYTES - 1).feed(data)


def test_a_promise_of_bytes_costs_no_memory() -> None:
    header = HEADER.pack(b"KVSR", 2, Kind.RESULT, 1, 0, 1, 0, 0, 2048, 1024, MAX_PAYLOAD_BYTES, 0)
    huge = HEADER.pack(b"KVSR", 2, Kind.RESULT, 1, 0, 1, 0, 0, 2**32 - 1, 2**32 - 1, 2**32 - 1, 0)
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            FrameDecoder().feed(huge)
        refused = tracemalloc.get_traced_memory()[1]
        FrameDecoder().feed(header)
        accepted = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert refused < 4 * STAGING_BYTES
    assert accepted < MAX_PAYLOAD_BYTES + 4 * STAGING_BYTES


def test_a_few_bytes_of_sums_cost_no_more_memory_than_a_payload_may_have() -> None:
    n_rows = MAX_PAYLOAD_BYTES // sums_bytes(1, 65_536) + 1
    bomb = Header(Kind.RESULT, WireType.SUMS, 0, 1, 0, n_rows, 1, 65_536, 256 * n_rows)  # zeros: a byte a block
    data = bomb.pack([bytes(256 * n_rows)]) + bytes(256 * n_rows)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=f"may have {sums_bytes(n_rows, 65_536)} bytes"):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 4 * STAGING_BYTES
    finally:
        tracemalloc.stop()


def test_a_decoder_that_failed_stays_failed() -> None:
    decoder = FrameDecoder()
    with pytest.raises(WireError):
        decoder.feed(b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n")
    with pytest.raises(WireError):
        decoder.feed(join(encode(Ping(1))))


def test_frames_before_a_bad_one_are_not_lost() -> None:
    decoder, data = FrameDecoder(), join(encode(Ping(1))) + join(encode(Ping(2))) + bytes(40)
    decoder.writable()[: len(data)] = data
    assert decoder.advance(len(data)) == [Ping(1), Ping(2)]
    assert decoder.failure is not None
    with pytest.raises(WireError):
        decoder.writable()


# What a hostile or mistaken sender may write


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"magic": b"HTTP"}, "HTTP"),
        ({"kind": 11}, "kind 11"),
        ({"kind": 0}, "kind 0"),
        ({"wire_type": 9}, "type 9"),
        ({"wire_type": 3}, "F16"),
        ({"wire_type": 0}, "NONE"),
        ({"flags": 8}, "0x08"),
        ({"request": 0}, "start at 1"),
        ({"n_rows": 0}, "0 rows"),
        ({"n_rows": 2}, "not 24"),
        ({"n_pairs": 0}, "0 pairs"),
        ({"n_pairs": 2}, "not 24"),
        ({"d_model": 0}, "d_model is 0"),
        ({"d_model": 2**32 - 1}, "d_model"),
        ({"wire_type": 2, "d_model": 100}, "whole blocks"),
        ({"payload_bytes": 23}, "not 23"),
        ({"payload_bytes": 2**32 - 1}, "4294967295"),
        ({"kind": int(Kind.RESULT)}, "n_rows"),
        ({"kind": int(Kind.PING)}, "does not use"),
        ({"check": 1}, "checksum 0x00000001"),
    ],
)
def test_headers_that_contradict_themselves_are_refused_by_name(fields: dict[str, int], message: str) -> None:
    values: dict[str, int | bytes] = {
        "magic": b"KVSR",
        "version": 2,
        "kind": int(Kind.DISPATCH),
        "wire_type": 1,
        "flags": 0,
        "request": 1,
        "layer": 0,
        "n_rows": 1,
        "n_pairs": 1,
        "d_model": 4,
        "payload_bytes": 24,
        "check": 0,
    }
    data = HEADER.pack(*(values | fields).values()) + bytes(24)
    with pytest.raises(WireError, match=message):
        decode(data if "check" in fields else with_checksum(data))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, None),
        ({"flags": 6}, None),
        ({"flags": 5}, "sums and for f16"),
        ({"flags": 12}, "0x0c"),
        ({"wire_type": 1, "d_model": 257, "payload_bytes": 8 + 8 + 1028}, "sums have whole blocks"),
        ({"wire_type": 1, "d_model": 256, "payload_bytes": 8 + 8 + 1024}, None),
        ({"wire_type": 4}, "DISPATCH cannot carry values of type SUMS"),
        ({"payload_bytes": 276}, "277 bytes, not 276"),
        ({"payload_bytes": 278}, "277 bytes, not 278"),
        ({"flags": 0}, "269 bytes, not 277"),
        ({"n_rows": 2}, "542 bytes, not 277"),
        ({"n_pairs": 2}, "289 bytes, not 277"),
        ({"kind": Kind.RESULT}, "RESULT cannot carry values of type KX1"),
        ({"kind": Kind.RESULT, "wire_type": 4}, "0x04"),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0}, None),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "n_rows": 0}, "0 rows"),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "n_pairs": 0}, "0 pairs"),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "d_model": 100}, "sums have whole blocks"),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "payload_bytes": 0}, "1 to 1025 bytes, not 0"),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "payload_bytes": 1}, None),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "payload_bytes": 1025}, None),
        ({"kind": Kind.RESULT, "wire_type": 4, "flags": 0, "payload_bytes": 1026}, "1 to 1025 bytes, not 1026"),
        ({"kind": Kind.RESULT, "wire_type": 1, "flags": 0, "n_rows": 1}, "counts its rows as pairs"),
        ({"kind": Kind.PING, "wire_type": 4, "flags": 0}, "does not use"),
    ],
)
def test_headers_of_sums_that_contradict_themselves_are_refused(fields: dict[str, int], message: str | None) -> None:
    values: dict[str, int] = {
        "kind": Kind.DISPATCH,
        "wire_type": 2,
        "flags": 4,
        "request": 1,
        "layer": 0,
        "n_rows": 1,
        "n_pairs": 1,
        "d_model": 256,
        "payload_bytes": 277,
    }
    values |= fields
    header = Header(Kind(values.pop("kind")), WireType(values.pop("wire_type")), **values)
    if message is None:
        header.check(PROTOCOL_LIMITS)
        return
    for check in (lambda: header.check(PROTOCOL_LIMITS), lambda: FrameDecoder().feed(header.pack([]))):
        with pytest.raises(WireError, match=message):
            check()


def test_sums_that_nobody_packs_are_no_frame() -> None:
    good = join(encode(sum_result(2, 3, value=100)))
    assert len(good) == HEADER_BYTES + 2 * 257
    for at, value, message in ((0, 12, "packed sums"), (0, 7, "packed sums"), (257, 16, "packed sums")):
        spoilt = bytearray(good)
        spoilt[HEADER_BYTES + at] = value
        for read in (decode, FrameDecoder().feed):
            with pytest.raises(WireError, match=message):
                read(with_checksum(bytes(spoilt)))
    longer = Header(Kind.RESULT, WireType.SUMS, 0, 1, 0, 2, 3, 256, 515)
    payload = bytes(good[HEADER_BYTES:]) + b"\0"
    with pytest.raises(WireError, match="packed sums"):
        decode(longer.pack([payload]) + payload)


def test_what_a_dispatch_for_sums_says_comes_back() -> None:
    weights, exponents = np.array([np.nan, -0.0, 1e-45], np.float32), np.array([-(2**31), 2**31 - 1], np.int32)
    again = decode(join(encode(dispatch_for_sums(2, 3, weights=weights, exponents=exponents))))
    assert isinstance(again, Dispatch)
    assert again.sums is not None
    assert (again.sums.weights.tobytes(), again.sums.exponents.tolist()) == (weights.tobytes(), exponents.tolist())
    assert again.rows.shape == (2, 261)
    assert decode(join(encode(dispatch()))).sums is None  # type: ignore[union-attr]


def test_another_version_is_told_apart_and_its_refuse_is_read() -> None:
    data = bytearray(join(encode(Refuse(RefuseCode.VERSION, "wire version 2, this side speaks 1"))))
    data[4] = 1
    assert decode(with_checksum(bytes(data))) == Refuse(RefuseCode.VERSION, "wire version 2, this side speaks 1")
    hello = bytearray(join(encode(Hello(Role.BACKBONE, FINGERPRINT, FINGERPRINT, "kx1"))))
    hello[4] = 1
    with pytest.raises(WireVersionError, match=r"version 1.*speaks 2"):
        decode(with_checksum(bytes(hello)))


def test_payloads_that_contradict_themselves_are_refused() -> None:
    def sent(frame: Frame, at: int, value: bytes, size_change: bytes = b"") -> bytes:
        data = bytearray(join(encode(frame)) + size_change)
        data[HEADER_BYTES + at : HEADER_BYTES + at + len(value)] = value
        data[28:32] = struct.pack("<I", len(data) - HEADER_BYTES)
        return with_checksum(bytes(data))

    hello = Hello(Role.BACKBONE, FINGERPRINT, FINGERPRINT, "kx1")
    welcome = Welcome(FINGERPRINT, FINGERPRINT, "", RowFormat.F32, 4, (ExpertRange(1, 2, 4), ExpertRange(1, 4, 6)))
    for data, message in (
        (sent(hello, 0, b"X"), "role byte 88"),
        (sent(hello, 65, bytes(4)), "max_payload_bytes is 0"),
        (sent(hello, 69, b"\xff\xff\xff\xff"), "max_rows is 4294967295"),
        (sent(hello, 81, b"\xff\xff"), "65535 bytes"),
        (sent(hello, 83, b"\xff"), "UTF-8"),
        (sent(hello, 83, b"\n"), "control"),
        (sent(hello, 0, b"", b"\0"), "1 bytes too many"),
        (sent(welcome, 80, b"\3"), "row format 3"),
        (sent(welcome, 81, bytes(4)), "d_model is 0"),
        (sent(welcome, 85, b"\3"), "byte 129"),
        (sent(welcome, 85, b"\xff\xff\xff\xff"), "is needed"),
        (sent(welcome, 85, b"\1"), "too many"),
        (sent(welcome, 93 + 16, b"\3"), "overlap"),
        (sent(welcome, 93, b"\2"), "ascend"),
        (sent(welcome, 93 + 8, b"\2"), "1:2-2"),
        (sent(Refuse(RefuseCode.FULL, ""), 0, b"\xff"), "code 255"),
        (sent(Fault(1, FaultCode.BAD_IDS, ""), 0, b"\0"), "code 0"),
        (sent(Pause(1), 0, b"", b"\0"), "too many"),
    ):
        with pytest.raises(WireError, match=message):
            decode(data)


@pytest.mark.parametrize(
    "frame",
    [
        Hello(Role.BACKBONE, "0f" * 31, FINGERPRINT, "kx1"),
        Hello(Role.BACKBONE, "0F" * 32, FINGERPRINT, "kx1"),
        Hello(Role.BACKBONE, FINGERPRINT, FINGERPRINT, "kx\n1"),
        Hello(Role.BACKBONE, FINGERPRINT, FINGERPRINT, "\ud800"),
        Welcome(FINGERPRINT, FINGERPRINT, "", RowFormat.F32, 4, (ExpertRange(1, 0, 4), ExpertRange(1, 3, 5))),
        Welcome(FINGERPRINT, FINGERPRINT, "", RowFormat.F32, 2**32, ()),
        Pause(-1),
        Pause(2**32),
        Ping(2**32),
        Fault(-1, FaultCode.BAD_IDS, ""),
        Result(0, 0, np.zeros((1, 1), np.float32)),
        Result(1, 2**32, np.zeros((1, 1), np.float32)),
        Result(1, 0, np.zeros((1, 1))),  # type: ignore[arg-type]
        Result(1, 0, np.zeros(3, np.float32)),
        Result(1, 0, np.zeros((0, 3), np.float32)),
        dataclasses.replace(dispatch_for_sums(), reply=ReplyType.F16),
        dataclasses.replace(dispatch(), sums=dispatch_for_sums().sums),
        dispatch_for_sums(2, 1, weights=np.ones(2, np.float32)),
        dispatch_for_sums(2, 1, exponents=np.zeros(1, np.int32)),
        dispatch_for_sums(weights=np.ones(1)),
        dispatch_for_sums(exponents=np.zeros(1)),
        sum_result(0),
        sum_result(n_pairs=0),
        sum_result(d_model=255),
        SumResult(0, 0, 1, np.zeros((1, 256), np.int32)),
        SumResult(1, 0, 1, np.zeros((1, 256), np.int64)),
        SumResult(1, 0, 1, np.zeros(256, np.int32)),
        Dispatch(1, 0, RowFormat.F32, 4, np.zeros((1, 15), np.uint8), np.zeros(1, np.int32), np.zeros(1, np.int32)),
        Dispatch(1, 0, RowFormat.F32, 4, np.zeros((1, 16), np.int8), np.zeros(1, np.int32), np.zeros(1, np.int32)),
        Dispatch(1, 0, RowFormat.F32, 4, np.zeros((1, 16), np.uint8), np.zeros(2, np.int32), np.zeros(1, np.int32)),
    ],
)
def test_frames_that_cannot_travel_are_not_sent(frame: Frame) -> None:
    with pytest.raises(WireError):
        encode(frame)


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(Hello(Role.WORKER, FINGERPRINT, FINGERPRINT, "kx1", token="secret"))  # noqa: S106


@given(st.text(max_size=2000))
@settings(max_examples=50, deadline=None)
def test_any_message_can_travel_clipped(message: str) -> None:
    frame = Goaway(clipped(message))
    assert decode(join(encode(frame, PROTOCOL_LIMITS))) == frame


# Replies in f16


def test_rows_that_fit_are_rounded_whatever_their_company() -> None:
    rows = np.array([[1.00001, -2.5], [70_000.0, 1.00001], [65_519.0, 1e-9], [65_520.0, 1.0]], np.float32)
    together, fits = f16_reply(rows)
    assert not fits
    assert together.tolist() == [[1.0, -2.5], [70_000.0, np.float32(1.00001)], [65_504.0, 0.0], [65_520.0, 1.0]]
    for row, expected in zip(rows, together, strict=True):
        alone, row_fits = f16_reply(row[None])
        assert alone[0].tobytes() == expected.tobytes()
        assert row_fits == bool((np.abs(row) < 65_520).all())


def test_rounding_twice_changes_nothing_and_values_that_are_not_finite_stay() -> None:
    rows = np.array([[np.inf, 1.00001], [np.nan, 2.0], [3.00001, 4.0]], np.float32)
    once, fits = f16_reply(rows)
    assert not fits
    assert once[:2].tobytes() == rows[:2].tobytes()
    assert f16_reply(once)[0].tobytes() == once.tobytes()
