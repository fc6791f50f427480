"""Large messages to a relay: the same bytes as the library's, in pieces, and nothing else in the middle of one."""

from __future__ import annotations

import asyncio
import random

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.utils import apply_mask

from kvasir.relay_connection import HEAD_BYTES, PIECE_BYTES, SMALL_BYTES, RelayConnection, masked_message

DEADLINE_S = 60.0


@pytest.mark.parametrize(
    "sizes",
    [
        [SMALL_BYTES + 1],
        [8, 48, SMALL_BYTES],
        [PIECE_BYTES - 16],
        [PIECE_BYTES - 15],
        [8, 48, 3 * PIECE_BYTES + 5, 0, 1, 2],
        [1] * 7 + [PIECE_BYTES, PIECE_BYTES + 3],
    ],
)
def test_a_message_has_the_bytes_of_a_masked_frame(sizes: list[int]) -> None:
    parts = [random.Random(n).randbytes(size) for n, size in enumerate(sizes)]
    mask, whole = b"\x12\x34\x56\x78", b"".join(parts)
    pieces = list(masked_message(parts, len(whole), mask))
    assert all(len(piece) <= PIECE_BYTES for piece in pieces)
    assert len(pieces) == -(-(len(whole) + 16) // PIECE_BYTES)
    sent = b"".join(pieces)
    assert sent[: HEAD_BYTES - 4] == Frame(Opcode.BINARY, whole).serialize(mask=True)[: HEAD_BYTES - 4]
    assert sent[HEAD_BYTES - 4 : HEAD_BYTES] == mask
    assert apply_mask(sent[HEAD_BYTES:], mask) == whole


async def _echo(server: ServerConnection) -> None:
    """Ping within messages: the answers must not land inside of one."""
    async for message in server:
        await server.ping()
        await server.send(message)


def test_messages_of_all_sizes_go_to_a_server_and_pings_are_answered_between_them() -> None:
    async def run() -> None:
        async with serve(_echo, "127.0.0.1", 0, max_size=2**24, compression=None) as server:
            port = server.sockets[0].getsockname()[1]
            async with connect(
                f"ws://127.0.0.1:{port}", create_connection=RelayConnection, max_size=2**24, compression=None
            ) as connection:
                assert isinstance(connection, RelayConnection)
                for n_bytes in (0, 1, SMALL_BYTES, SMALL_BYTES + 1, 8 * 2**20 + 3, 100):
                    parts = [b"", random.Random(n_bytes).randbytes(n_bytes)]
                    pongs = [await connection.ping()]
                    sending = asyncio.create_task(connection.send_message(parts, n_bytes))
                    await asyncio.sleep(0)
                    pongs.append(await connection.ping())
                    await sending
                    assert await connection.recv() == parts[1]
                    await asyncio.gather(*pongs)

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))


def test_a_connection_that_is_lost_within_a_message_raises() -> None:
    async def cut(server: ServerConnection) -> None:
        server.transport.abort()

    async def run() -> None:
        async with serve(cut, "127.0.0.1", 0, max_size=2**26) as server:
            port = server.sockets[0].getsockname()[1]
            connection = await connect(f"ws://127.0.0.1:{port}", create_connection=RelayConnection)
            assert isinstance(connection, RelayConnection)
            large = bytes(2**26)
            with pytest.raises(ConnectionClosed):
                for _ in range(2):
                    await connection.send_message([large], len(large))
            await connection.wait_closed()

    asyncio.run(asyncio.wait_for(run(), DEADLINE_S))
