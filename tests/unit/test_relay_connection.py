"""Messages to and from a relay against the library's server: the same bytes, and nothing in the middle of a message."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.utils import apply_mask

from kvasir.relay.connection import PIECE_BYTES, RelayConnection, masked_message
from kvasir.relay.records import message_head
from kvasir.wire.header import Buffer

DEADLINE_S = 60.0
SIZES = (0, 1, 125, 126, 65_535, 65_536, 65_537, 8 * 2**20 + 3, 100)


class Heard:
    """What a connection said of itself."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[Buffer] = asyncio.Queue()
        self.lost = asyncio.Event()


@asynccontextmanager
async def connected(
    handler: Callable[[ServerConnection], Awaitable[None]],
) -> AsyncIterator[tuple[RelayConnection, Heard]]:
    heard = Heard()
    create = partial(RelayConnection, on_message=heard.messages.put_nowait, on_lost=heard.lost.set)
    async with serve(handler, "127.0.0.1", 0, max_size=2**26, compression=None) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(
            f"ws://127.0.0.1:{port}",
            create_connection=create,  # type: ignore[arg-type]  # declared as a class, but any callable does
            max_size=2**24,
            compression=None,
        ) as connection:
            assert isinstance(connection, RelayConnection)
            yield connection, heard


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), DEADLINE_S)

    asyncio.run(bounded())


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [0],
        [1],
        [125],
        [100, 26],
        [65_535],
        [65_536],
        [8, 48, 65_536],
        [PIECE_BYTES - 16],
        [PIECE_BYTES - 15],
        [2 * PIECE_BYTES - 16],
        [24 * PIECE_BYTES + 44],
        [8, 48, 3 * PIECE_BYTES + 5, 0, 1, 2],
        [1] * 7 + [PIECE_BYTES, PIECE_BYTES + 3],
    ],
)
def test_a_message_has_the_bytes_of_a_masked_frame(sizes: list[int]) -> None:
    parts = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    mask, whole = b"\x12\x34\x56\x78", b"".join(parts)
    pieces = list(masked_message(parts, len(whole), mask))
    assert all(0 < len(piece) <= PIECE_BYTES for piece in pieces)
    assert len(pieces) == -(-(len(whole) + 16) // PIECE_BYTES)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 16 + 8 * len(pieces)  # none is a mere rest
    sent, head = b"".join(pieces), message_head(len(whole), is_masked=True)
    assert sent.startswith(head)
    assert Frame(Opcode.BINARY, whole).serialize(mask=True).startswith(head)
    assert sent[len(head) : len(head) + 4] == mask
    assert apply_mask(sent[len(head) + 4 :], mask) == whole


def test_masks_differ_from_message_to_message() -> None:
    async def scenario() -> None:
        written: list[bytes] = []
        async with connected(_listen) as (connection, _):
            write = connection.transport.write
            connection.transport.write = lambda data: (written.append(bytes(data)), write(data))[1]  # type: ignore[method-assign,func-returns-value]
            for _ in range(20):
                await connection.send_message([bytes(8)], 8)
        masks = {data[2:6] for data in written if data[:2] == message_head(8, is_masked=True)}
        assert len(masks) >= 19

    run(scenario)


async def _wait(server: ServerConnection) -> None:
    await server.wait_closed()


async def _listen(server: ServerConnection) -> None:
    """Read on: a server that does not reads no close either, which is then waited for."""
    async for _ in server:
        pass


async def _echo(server: ServerConnection) -> None:
    """Ping within messages: the answers must not land inside of one."""
    async for message in server:
        await server.ping()
        await server.send(message)


def test_messages_of_all_sizes_go_to_a_server_and_back_and_pings_are_answered_between_them() -> None:
    async def scenario() -> None:
        async with connected(_echo) as (connection, heard):
            for n_bytes in SIZES:
                parts = [b"", random.Random(n_bytes).randbytes(n_bytes)]
                pongs = [await connection.ping()]
                sending = asyncio.create_task(connection.send_message(parts, n_bytes))
                await asyncio.sleep(0)
                pongs.append(await connection.ping())
                await sending
                assert bytes(await heard.messages.get()) == parts[1]
                await asyncio.gather(*pongs)

    run(scenario)


def test_messages_keep_their_order_whichever_way_they_came() -> None:
    async def scenario() -> None:
        async def say(server: ServerConnection) -> None:
            await server.send(b"whole")
            await server.send([b"in ", b"several ", b"frames"])
            await server.ping()
            await server.send(bytes(300_000))
            await server.send("text")
            await server.send(b"last")
            await server.close(1000, "enough")

        async with connected(say) as (connection, heard):
            await heard.lost.wait()
            messages = [bytes(heard.messages.get_nowait()) for _ in range(heard.messages.qsize())]
            assert messages == [b"whole", b"in several frames", bytes(300_000), b"text", b"last"]
            assert (connection.close_code, connection.close_reason) == (1000, "enough")
            with pytest.raises(ConnectionClosed):
                await connection.send_message([b"late"], 4)

    run(scenario)


def test_a_message_of_too_many_frames_ends_the_connection() -> None:
    async def scenario() -> None:
        async def say(server: ServerConnection) -> None:
            server.transport.write(Frame(Opcode.BINARY, b"", False).serialize(mask=False))
            for _ in range(5000):
                server.transport.write(Frame(Opcode.CONT, b"", False).serialize(mask=False))
            await server.wait_closed()

        async with connected(say) as (_, heard):
            await heard.lost.wait()
            assert heard.messages.empty()

    run(scenario)


def test_a_message_over_the_limit_is_refused_as_the_library_does() -> None:
    async def scenario() -> None:
        async def say(server: ServerConnection) -> None:
            with suppress(ConnectionClosed):
                await server.send(bytes(2**24))
                await server.send(bytes(2**24 + 1))

        async with connected(say) as (connection, heard):
            await heard.lost.wait()
            assert len(heard.messages.get_nowait()) == 2**24
            assert heard.messages.empty()
            said = connection.protocol.close_sent
            assert said is not None
            assert said.code == 1009

    run(scenario)


def test_a_connection_that_is_lost_within_a_message_raises() -> None:
    async def cut(server: ServerConnection) -> None:
        server.transport.abort()

    async def scenario() -> None:
        async with connected(cut) as (connection, heard):
            large = bytes(2**26)
            with pytest.raises(ConnectionClosed):
                for _ in range(2):
                    await connection.send_message([large], len(large))
            await heard.lost.wait()

    run(scenario)


def test_a_message_that_breaks_off_is_none() -> None:
    async def cut(server: ServerConnection) -> None:
        server.transport.write(Frame(Opcode.BINARY, bytes(1000)).serialize(mask=False)[:-1])
        server.transport.close()

    async def scenario() -> None:
        async with connected(cut) as (connection, heard):
            await heard.lost.wait()
            assert heard.messages.empty()
            assert connection.close_code == 1006

    run(scenario)
