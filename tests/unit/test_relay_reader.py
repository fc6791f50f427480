"""What a relay sends, cut at any byte: whole binary messages come out, all else reaches the library untouched.

Frames are made by the `websockets` library as the server, and what is handed over is judged by it as the client.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Frame, Opcode

from kvasir.relay.reader import STAGING_BYTES, RelayReader

LIMIT = 200_000
HANDSHAKE = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"


@dataclass
class Sink:
    """What came out: messages, bytes that were handed over, and both in their order."""

    messages: list[bytes] = field(default_factory=list)
    others: bytearray = field(default_factory=bytearray)
    order: list[str] = field(default_factory=list)
    is_open: bool = True

    def reader(self) -> RelayReader:
        return RelayReader(self._message, self._other, lambda: self.is_open, LIMIT)

    def _message(self, message: memoryview) -> None:
        self.messages.append(bytes(message))
        self.order.append("message")

    def _other(self, data: bytes) -> None:
        assert data
        self.others += data
        if not self.order or self.order[-1] != "other":
            self.order.append("other")


def feed(reader: RelayReader, stream: bytes, step: int) -> None:
    """Give the stream in reads of at most `step` bytes."""
    at = 0
    while at < len(stream):
        space = reader.writable()
        n_bytes = min(len(space), step, len(stream) - at)
        assert n_bytes
        space[:n_bytes] = stream[at : at + n_bytes]
        reader.advance(n_bytes)
        at += n_bytes


def frame(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=False)


def payload(n_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(n_bytes)


SIZES = (0, 1, 125, 126, 127, 1000, 65_535, 65_536, 65_537, STAGING_BYTES - 2, STAGING_BYTES - 9, LIMIT)
FRAMES = st.one_of(
    st.tuples(st.just(Opcode.BINARY), st.sampled_from(SIZES)),
    st.tuples(st.sampled_from([Opcode.PING, Opcode.PONG]), st.sampled_from([0, 1, 125])),
    st.tuples(st.just(Opcode.TEXT), st.sampled_from([0, 1, 126, 65_536])),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(FRAMES, min_size=1, max_size=6), st.integers(1, 70_000), st.integers(0, 2**32))
def test_the_stream_is_parted_the_same_however_it_is_cut(kinds: list[tuple[Opcode, int]], step: int, seed: int) -> None:
    frames = [(opcode, payload(size, seed + n)) for n, (opcode, size) in enumerate(kinds)]
    sink = Sink()
    feed(sink.reader(), HANDSHAKE + b"".join(frame(opcode, data) for opcode, data in frames), step)
    assert sink.messages == [data for opcode, data in frames if opcode is Opcode.BINARY]
    assert bytes(sink.others) == HANDSHAKE + b"".join(
        frame(opcode, data) for opcode, data in frames if opcode is not Opcode.BINARY
    )
    order = ["other"]
    for opcode, _ in frames:
        if opcode is Opcode.BINARY:
            order.append("message")
        elif order[-1] != "other":
            order.append("other")
    assert sink.order == order


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
def test_every_byte_may_come_alone(size: int) -> None:
    data = payload(size)
    sink = Sink()
    feed(sink.reader(), HANDSHAKE + frame(Opcode.PING, b"p") + frame(Opcode.BINARY, data) + frame(Opcode.PONG, b""), 1)
    assert sink.messages == [data]
    assert bytes(sink.others) == HANDSHAKE + frame(Opcode.PING, b"p") + frame(Opcode.PONG, b"")


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_a_message_in_several_frames_is_the_librarys_with_all_that_stands_between_them(step: int) -> None:
    others = [
        frame(Opcode.BINARY, b"first", fin=False),
        frame(Opcode.PING, b"ping"),
        frame(Opcode.CONT, b"second", fin=False),
        frame(Opcode.BINARY, b"whole, and against the rules here"),
        frame(Opcode.CONT, b"third", fin=False),
    ]
    sink = Sink()
    feed(sink.reader(), HANDSHAKE + b"".join(others), step)
    assert (sink.messages, bytes(sink.others)) == ([], HANDSHAKE + b"".join(others))
    del others[3]
    others.append(frame(Opcode.CONT, b"end"))
    sink = Sink()
    feed(sink.reader(), HANDSHAKE + b"".join(others) + frame(Opcode.BINARY, b"whole"), step)
    assert (sink.messages, bytes(sink.others)) == ([b"whole"], HANDSHAKE + b"".join(others))


@pytest.mark.parametrize(
    "last",
    [
        frame(Opcode.CLOSE, b"\x03\xe8"),
        frame(Opcode.BINARY, bytes(LIMIT + 1)),
        Frame(Opcode.BINARY, b"masked").serialize(mask=True),
        b"\xc2\x01x",  # a reserved bit, as of a compressed message
        b"\x82\x7e\x00\x05short",  # a long form for a short length
        b"\x82\x7f" + (65_535).to_bytes(8, "big") + bytes(65_535),
        b"\x82\x7f" + (2**63).to_bytes(8, "big"),
    ],
    ids=["close", "too long", "masked", "reserved bit", "long form", "longest form", "2**63"],  # a mask is random
)
def test_after_a_frame_that_ends_reading_everything_is_the_librarys(last: bytes) -> None:
    after = frame(Opcode.BINARY, b"looks like a message")
    for step in (1, 100, 1_000_000):
        if step == 1 and len(last) > 70_000:
            continue
        sink = Sink()
        feed(sink.reader(), HANDSHAKE + frame(Opcode.BINARY, b"before") + last + after, step)
        assert sink.messages == [b"before"]
        assert bytes(sink.others) == HANDSHAKE + last + after


def test_a_message_at_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    sink = Sink()
    feed(sink.reader(), HANDSHAKE + frame(Opcode.BINARY, bytes(LIMIT)) + frame(Opcode.BINARY, bytes(LIMIT + 1)), 50_000)
    assert sink.messages == [bytes(LIMIT)]
    assert bytes(sink.others) == HANDSHAKE + frame(Opcode.BINARY, bytes(LIMIT + 1))


def test_a_head_that_promises_much_takes_no_memory_before_bytes_come() -> None:
    sink = Sink()
    reader = sink.reader()
    feed(reader, HANDSHAKE + b"\x82\x7f" + LIMIT.to_bytes(8, "big") + b"abc", 1_000_000)
    assert len(reader.writable()) == LIMIT - 3
    assert not sink.messages


def test_each_message_has_memory_of_its_own() -> None:
    kept: list[memoryview] = []
    reader = RelayReader(kept.append, lambda data: None, lambda: True, LIMIT)
    sizes = [5, 70_000, 5, 70_000]
    feed(reader, HANDSHAKE + b"".join(frame(Opcode.BINARY, payload(n, i)) for i, n in enumerate(sizes)), 9_999)
    assert [bytes(message) for message in kept] == [payload(n, i) for i, n in enumerate(sizes)]
    assert not any(message.readonly for message in kept)


@pytest.mark.parametrize("step", [1, 2, 5, 10_000])
def test_another_answer_to_the_handshake_is_the_librarys_with_its_body(step: int) -> None:
    sink = Sink(is_open=False)
    stream = b"HTTP/1.1 503 Full\r\nContent-Length: 3\r\n\r\n" + frame(Opcode.BINARY, b"body")
    feed(sink.reader(), stream, step)
    assert (sink.messages, bytes(sink.others)) == ([], stream)
