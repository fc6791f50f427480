"""Records and openings: what goes in comes out, and everything else is a WireError."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.errors import WireError, WireVersionError
from kvasir.relay.records import (
    MAX_FRAME_BYTES,
    RECORD,
    opening_message,
    read_opening,
    record,
    record_spans,
    relay_welcome,
)
from kvasir.wire.codec import decode
from kvasir.wire.frames import Hello, Ping, Role

HELLO = Hello(Role.WORKER, "ab" * 32, "cd" * 32, "kx1", token="secret")  # noqa: S106 (it is none)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.binary(max_size=50)), min_size=1, max_size=8))
def test_records_come_back_in_order(records: list[tuple[int, bytes]]) -> None:
    message = b"".join(RECORD.pack(edge, len(data)) + data for edge, data in records)
    assert [(edge, message[start:stop]) for edge, start, stop in record_spans(message)] == records


@given(st.binary(max_size=200))
def test_any_bytes_are_records_or_a_wire_error(message: bytes) -> None:
    try:
        spans = list(record_spans(message))
    except WireError:
        return
    assert spans[-1][2] == len(message)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "empty message"),
        (bytes(7), "within the head"),
        (RECORD.pack(1, 5) + b"abcd", "ends at byte 12, its record for edge 1 at byte 13"),
        (RECORD.pack(1, MAX_FRAME_BYTES + 1), "at most 8388644"),
    ],
)
def test_messages_that_are_not_whole_records(message: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        list(record_spans(message))


def test_a_record_is_its_frame() -> None:
    [(edge, start, stop)] = record_spans(message := record(7, Ping(9)))
    assert (edge, decode(message[start:stop])) == (7, Ping(9))


def test_openings_come_back_and_hide_their_token() -> None:
    assert read_opening(opening_message(HELLO)) == HELLO
    assert "secret" not in repr(HELLO)


@pytest.mark.parametrize("first", [b"", b"B", b"X", b"w", b"\x00"])
def test_the_role_byte_must_be_there_and_agree(first: bytes) -> None:
    with pytest.raises(WireError, match="role byte"):
        read_opening(first + opening_message(HELLO)[1:] if first else b"")


def test_an_opening_of_another_version_names_both() -> None:
    message = bytearray(opening_message(HELLO))
    message[5] = 9
    with pytest.raises(WireVersionError, match=r"version 9 .* speaks 2"):
        read_opening(bytes(message))


def test_the_relays_welcome_states_the_credit_and_holds_nothing() -> None:
    welcome = relay_welcome(HELLO, "relay", 12345)
    assert (welcome.limits.max_inflight_bytes, welcome.ranges) == (12345, ())
    assert welcome.model_fingerprint == HELLO.model_fingerprint
