"""The quick way for WebSocket frames against the `websockets` library as the client, cut at any byte."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from kvasir.relay.records import message_head
from relay.server.frame_reader import FrameReader

LIMIT = 200_000


@dataclass
class Sink:
    """What came out, in order: messages, and bytes that were handed over."""

    messages: list[bytes] = field(default_factory=list)
    others: bytearray = field(default_factory=bytearray)
    n_left: int = 0  # of a frame that Autobahn, played by this sink, is in the middle of

    def reader(self) -> FrameReader:
        return FrameReader(
            lambda message: self.messages.append(bytes(message)), self._take, lambda: self.n_left == 0, LIMIT
        )

    def _take(self, data: bytes) -> None:
        """As Autobahn does: take everything, and be in the middle of something from then on."""
        self.others += data
        self.n_left = 1


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def give(reader: FrameReader, data: bytes, is_in_place: bool) -> None:
    """Bytes of one read: written into the message that is being gathered where that may be, else fed."""
    while data:
        space = reader.writable() if is_in_place else None
        if space is None:
            reader.feed(data)
            return
        n_bytes = min(len(space), len(data))
        assert n_bytes
        space[:n_bytes] = data[:n_bytes]
        reader.advance(n_bytes)
        data = data[n_bytes:]


SIZES = st.sampled_from([0, 1, 125, 126, 127, 1000, 65_535, 65_536, 65_537, LIMIT])


@settings(max_examples=60, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=5), st.integers(1, 70_000), st.integers(0, 2**32), st.booleans())
def test_messages_come_out_whole_however_the_stream_is_cut(
    sizes: list[int], step: int, seed: int, is_in_place: bool
) -> None:
    payloads = [random.Random(seed + n).randbytes(size) for n, size in enumerate(sizes)]
    stream = b"".join(masked(Opcode.BINARY, payload) for payload in payloads)
    sink = Sink()
    reader = sink.reader()
    taken = 0
    for start in range(0, len(stream), step):
        if sink.others:
            break  # a head was cut apart: the rest is Autobahn's until it is between frames again
        give(reader, stream[start : start + step], is_in_place)
        taken = min(start + step, len(stream))
    n_whole = len(sink.messages)
    assert sink.messages == payloads[:n_whole]
    passed = sum(len(masked(Opcode.BINARY, payload)) for payload in payloads[:n_whole])
    if sink.others:
        assert bytes(sink.others) == stream[passed:taken]
        assert len(sink.others) < 14
    else:
        assert n_whole == len(payloads)


def test_what_is_not_a_whole_binary_message_is_handed_over_untouched() -> None:
    mask = b"\x01\x02\x03\x04"
    others = [
        masked(Opcode.TEXT, b"text"),
        masked(Opcode.PING, b"ping"),
        masked(Opcode.CLOSE, b"\x03\xe8"),
        masked(Opcode.BINARY, b"part", fin=False),
        masked(Opcode.CONT, b"part"),
        Frame(Opcode.BINARY, b"unmasked").serialize(mask=False),
        masked(Opcode.BINARY, bytes(LIMIT + 1)),
        b"\x82\xfe\x00\x05" + mask + b"short",  # a long form for a short length
        b"\x82\xff" + (5).to_bytes(8, "big") + mask + b"short",
        b"\x82\xff" + (2**63).to_bytes(8, "big") + mask,
        b"\x82",
    ]
    for data in others:
        sink = Sink()
        sink.reader().feed(masked(Opcode.BINARY, b"before") + data)
        assert sink.messages == [b"before"]
        assert bytes(sink.others) == data


@pytest.mark.parametrize("cuts", [[1], [7], [8], [9], [1] * 200, [3, 5, 8, 13, 21]])
def test_a_message_that_is_written_in_place_is_unmasked_wherever_it_is_cut(cuts: list[int]) -> None:
    payload = random.Random(len(cuts)).randbytes(201)
    stream = masked(Opcode.BINARY, payload)
    sink = Sink()
    reader = sink.reader()
    assert reader.writable() is None
    reader.feed(stream[:9])
    at = 9
    for cut in cuts:
        give(reader, stream[at : at + cut], True)
        at += cut
    give(reader, stream[at:], True)
    assert sink.messages == [payload]
    assert reader.writable() is None


def test_nothing_is_read_while_autobahn_is_in_the_middle_of_a_frame() -> None:
    sink = Sink(n_left=1)
    data = masked(Opcode.BINARY, b"looks like a message")
    sink.reader().feed(data)
    assert (sink.messages, bytes(sink.others)) == ([], data)


def test_a_limit_that_is_raised_counts_from_the_next_frame() -> None:
    sink = Sink()
    reader = sink.reader()
    reader.max_bytes = LIMIT + 1
    reader.feed(masked(Opcode.BINARY, bytes(LIMIT + 1)))
    assert sink.messages == [bytes(LIMIT + 1)]


def test_what_the_server_writes_is_what_the_library_would() -> None:
    for size in (0, 1, 125, 126, 127, 65_535, 65_536, 100_000):
        assert message_head(size) + bytes(size) == Frame(Opcode.BINARY, bytes(size)).serialize(mask=False)
