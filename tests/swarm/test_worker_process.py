"""The native worker as a real process on a real slice: exact, unmoved by hostile sockets, in order at its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvasir.edge.tcp_edge import TcpEdge
from kvasir.errors import EdgeError, HandshakeRefused, WorkerFault
from kvasir.experts import ExpertRange, FloatRows
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import EncodedRows, Pairs
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir.wire.codec import FrameDecoder, decode, encode, join
from kvasir.wire.frames import (
    Dispatch,
    Fault,
    FaultCode,
    Frame,
    Hello,
    Ping,
    Refuse,
    RefuseCode,
    ReplyType,
    Result,
    Role,
    f16_reply,
)
from kvasir.wire.header import FLAG_REPLY_F16, FLAG_SUMS, HEADER, HEADER_BYTES, Limits
from kvasir.wire.split import Answer, ExpertCall
from kvasir.worker.serving.holdings import Holdings, open_holdings
from tests.swarm.worker_process import DEADLINE_S, ROOT, WorkerProcess, worker_process

MODEL_PATH = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
RANGES = (ExpertRange(1, 2, 6), ExpertRange(1, 9, 11), ExpertRange(4, 0, 16))
N_LOCAL = {1: 6, 4: 16}


@pytest.fixture(scope="module")
def slice_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("worker") / "slice.gguf"
    with GGUFIndex.open(MODEL_PATH) as index:
        write_slice(plan_slice(index, ModelCard.from_index(index), RANGES), path)
    return path


@pytest.fixture(scope="module")
def held(slice_path: Path) -> Holdings:
    """The same slice in this process: the answers that the worker must give."""
    return open_holdings(slice_path, "auto", 1)


@pytest.fixture(scope="module")
def worker(slice_path: Path) -> Iterator[WorkerProcess]:
    with worker_process(slice_path) as started:
        yield started


def hello(held: Holdings, **changes: Any) -> Hello:
    values = {"model_fingerprint": held.model_fingerprint, "kernel_fingerprint": held.kernel.fingerprint, **changes}
    return Hello(values.pop("role", Role.BACKBONE), kernel=held.kernel.name, **values)


async def connect(worker: WorkerProcess, held: Holdings) -> TcpEdge:
    return await TcpEdge.connect("127.0.0.1", worker.port, hello(held), deadline_s=DEADLINE_S)


class Work:
    """A dispatch with random rows, and its answer as this process computes it."""

    def __init__(self, held: Holdings, seed: int, n_rows: int, n_used: int = 2) -> None:
        random = np.random.default_rng(seed)
        self.layer = int(random.choice(list(N_LOCAL)))
        values = random.standard_normal((n_rows, held.d_model)).astype(np.float32)
        self.rows: EncodedRows = held.kernel.encode_rows(values)
        self.pair_rows: Pairs = np.repeat(np.arange(n_rows, dtype=np.int32), n_used)
        self.pair_ids: Pairs = random.integers(0, N_LOCAL[self.layer], n_rows * n_used, np.int32)
        self._held = held

    def expected(self) -> FloatRows:
        return self._held.layers[self.layer].compute(self.rows, self.pair_rows, self.pair_ids)

    async def ask(self, edge: TcpEdge) -> Answer:
        row_format = self._held.kernel.row_format
        call = ExpertCall(self.layer, self.rows, row_format, self.pair_rows, self.pair_ids)
        return await edge.dispatch(call, DEADLINE_S)

    async def check(self, edge: TcpEdge) -> None:
        assert (await self.ask(edge)).tobytes() == self.expected().tobytes()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_it_works(worker: WorkerProcess, held: Holdings) -> None:
    async def test() -> None:
        edge = await connect(worker, held)
        assert edge.coverage == RANGES
        for seed, n_rows in enumerate((1, 2, 33)):
            await Work(held, seed, n_rows).check(edge)
        await edge.close()

    run(test)


def test_it_says_what_it_serves(worker: WorkerProcess, held: Holdings, slice_path: Path) -> None:
    said = worker.listening
    assert said["event"] == "listening"
    assert said["ranges"] == [[r.layer, r.start, r.stop] for r in RANGES]
    assert said["slice_bytes"] == slice_path.stat().st_size
    assert (said["model_fingerprint"], said["kernel"]) == (held.model_fingerprint, held.kernel.name)
    assert said["kernel_fingerprint"] == held.kernel.fingerprint
    assert said["threads"] >= 1


def test_many_requests_of_two_backbones_at_once_are_all_exact(worker: WorkerProcess, held: Holdings) -> None:
    async def test() -> None:
        edges = [await connect(worker, held) for _ in range(2)]
        works = [Work(held, seed, n_rows=1 + seed % 9) for seed in range(40)]
        await asyncio.gather(*(work.check(edges[i % 2]) for i, work in enumerate(works)))
        assert all(edge.n_inflight == 0 for edge in edges)
        await asyncio.gather(*(edge.close() for edge in edges))

    run(test)


def test_a_dispatch_of_many_frames_is_exact(worker: WorkerProcess, held: Holdings) -> None:
    async def test() -> None:
        edge = await connect(worker, held)
        work = Work(held, 5, n_rows=6000)
        await work.check(edge)
        assert edge.bytes_received > 8 * 2**20
        await edge.close()

    run(test)


def test_f16_answers_are_the_rounded_ones(worker: WorkerProcess, held: Holdings) -> None:
    """Backbones of earlier releases may ask for them."""
    work, decoder, frames = Work(held, 6, n_rows=50), FrameDecoder(), list[Frame]()
    pairs = work.pair_rows, work.pair_ids
    asked = Dispatch(1, work.layer, held.kernel.row_format, held.d_model, work.rows, *pairs, ReplyType.F16)
    with socket.create_connection(("127.0.0.1", worker.port), DEADLINE_S) as stream:
        for number, data in enumerate((join(encode(hello(held))), join(encode(asked))), 1):
            stream.sendall(data)
            while len(frames) < number:
                frames += decoder.feed(stream.recv(65_536))
    result = frames[1]
    assert isinstance(result, Result) and result.outputs.dtype == np.float16
    assert result.outputs.astype(np.float32).tobytes() == f16_reply(work.expected())[0].tobytes()


@pytest.mark.parametrize("isa", ["scalar", "numpy"])
def test_other_builds_of_the_kernel_give_the_same_bits(slice_path: Path, held: Holdings, isa: str) -> None:
    async def test(worker: WorkerProcess) -> None:
        edge = await connect(worker, held)
        await Work(held, 7, n_rows=3).check(edge)
        await edge.close()

    with worker_process(slice_path, kernel_isa=isa) as other:
        assert other.listening["isa"] == isa
        asyncio.run(test(other))


# What it refuses


def test_faults_leave_the_edge_open(worker: WorkerProcess, held: Holdings) -> None:
    async def test() -> None:
        edge = await connect(worker, held)
        good = Work(held, 8, n_rows=2)
        bad_rows, row_format, no_pair = good.rows.copy(), held.kernel.row_format, np.zeros(1, np.int32)
        bad_rows[0, :4] = 128  # KX1's forbidden code -128; NaN would not survive encoding
        for layer, rows, ids, code in (
            (0, good.rows, no_pair, "UNKNOWN_LAYER"),
            (1, good.rows, np.array([6], np.int32), "BAD_IDS"),
            (1, good.rows, np.array([-1], np.int32), "BAD_IDS"),
            (1, bad_rows, no_pair, "BAD_ROWS"),
        ):
            with pytest.raises(WorkerFault, match=code):
                await edge.dispatch(ExpertCall(layer, rows, row_format, no_pair, ids), DEADLINE_S)
        await asyncio.gather(*(work.check(edge) for work in (good, Work(held, 9, n_rows=1))))
        await edge.close()

    run(test)


def test_nan_rows_are_refused_before_the_float_kernel(slice_path: Path) -> None:
    held = open_holdings(slice_path, "float", 1)

    async def test(worker: WorkerProcess) -> None:
        edge = await connect(worker, held)
        work = Work(held, 10, n_rows=2)
        await work.check(edge)
        work.rows[1].view(np.float32)[7] = np.nan
        with pytest.raises(WorkerFault, match=r"BAD_ROWS.*row 1"):
            await work.ask(edge)
        await Work(held, 11, n_rows=1).check(edge)
        await edge.close()

    with worker_process(slice_path, "--kernel", "float") as floating:
        asyncio.run(test(floating))


@pytest.mark.parametrize("what", ["model_fingerprint", "kernel_fingerprint"])
def test_a_wrong_fingerprint_is_refused_with_both(worker: WorkerProcess, held: Holdings, what: str) -> None:
    async def test() -> None:
        wrong = hello(held, **{what: "ee" * 32})
        with pytest.raises(HandshakeRefused) as caught:
            await TcpEdge.connect("127.0.0.1", worker.port, wrong, deadline_s=DEADLINE_S)
        ours = held.model_fingerprint if what == "model_fingerprint" else held.kernel.fingerprint
        assert "ee" * 32 in str(caught.value)
        assert ours in str(caught.value)

    run(test)


def test_one_backbone_too_many_is_refused_and_welcome_later(slice_path: Path, held: Holdings) -> None:
    async def test(worker: WorkerProcess) -> None:
        first = await connect(worker, held)
        with pytest.raises(HandshakeRefused, match=r"FULL.*1 backbones are connected, 1 may be"):
            await connect(worker, held)
        await Work(held, 12, n_rows=1).check(first)
        await first.close()
        second = await connect(worker, held)
        await second.close()

    with worker_process(slice_path, "--max-clients", "1") as small:
        asyncio.run(test(small))


# Hostile sockets


NUMBERS = ("request", "layer", "n_rows", "n_pairs", "d_model", "payload_bytes")
HEADER_FIELDS = ("magic", "version", "kind", "dtype", "flags", *NUMBERS)


def frame(held: Holdings, **changes: Any) -> bytes:
    """A Dispatch of one row and one pair with header fields of one's choice and a checksum that fits."""
    work = Work(held, 13, n_rows=1, n_used=1)
    pairs = np.zeros(1, np.int32)
    whole = join(encode(Dispatch(1, 1, held.kernel.row_format, held.d_model, work.rows, pairs, pairs)))
    fields = list(HEADER.unpack_from(whole))
    for name, value in changes.items():
        fields[HEADER_FIELDS.index(name)] = value
    head = HEADER.pack(*fields)[:-4]
    return head + struct.pack("<I", zlib.crc32(head + whole[HEADER_BYTES:])) + whole[HEADER_BYTES:]


STRANGERS: dict[str, Callable[[Holdings], bytes]] = {
    "http": lambda _: b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes(8),
    "zeros": lambda _: bytes(5000),
    "random": lambda _: np.random.default_rng(1).bytes(100_000),
    "other version": lambda held: join(encode(hello(held)))[:4] + b"\x01" + join(encode(hello(held)))[5:],
    "wrong magic": lambda held: b"kvsr" + join(encode(hello(held)))[4:],
    "worker's role": lambda held: join(encode(hello(held, role=Role.WORKER))),
    "no hello but a ping": lambda _: join(encode(Ping(1))),
    "no hello but a dispatch": frame,
    "hello that promises 8 MiB": lambda _: HEADER.pack(b"KVSR", 2, 1, 0, 0, 0, 0, 0, 0, 0, 2**23, 0),
    "spoilt hello": lambda held: join(encode(hello(held)))[:-1] + b"\xff",
}
KNOWN: dict[str, Callable[[Holdings], bytes]] = {
    "garbage": lambda _: np.random.default_rng(2).bytes(100_000),
    "spoilt checksum": lambda held: frame(held)[:-1] + bytes([frame(held)[-1] ^ 1]),
    "huge counts": lambda held: frame(held, n_rows=2**32 - 1, n_pairs=2**32 - 1),
    "huge width": lambda held: frame(held, d_model=2**32 - 256),
    "oversize": lambda held: frame(held, payload_bytes=2**32 - 1),
    "one byte over 8 MiB": lambda held: frame(held, payload_bytes=2**23 + 1),
    "no pairs": lambda held: frame(held, n_pairs=0),
    "counts that contradict the length": lambda held: frame(held, n_rows=2),
    "unknown kind": lambda held: frame(held, kind=99),
    "unknown dtype": lambda held: frame(held, dtype=7),
    "f16 rows": lambda held: frame(held, dtype=3),
    "unknown flag": lambda held: frame(held, flags=0x80),
    "sums without weights": lambda held: frame(held, flags=FLAG_SUMS),
    "sums in f16": lambda held: frame(held, flags=FLAG_SUMS | FLAG_REPLY_F16),
    "another version in mid-stream": lambda held: frame(held, version=1),
    "hello again": lambda held: join(encode(hello(held))),
    "a fault": lambda _: join(encode(Fault(1, FaultCode.BAD_IDS, ""))),
}


def talk(worker: WorkerProcess, data: bytes) -> bytes:
    """Everything that the worker says to these bytes until it closes."""
    with socket.create_connection(("127.0.0.1", worker.port), DEADLINE_S) as stream:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has read enough
            stream.sendall(data)
        said = b""
        while data := stream.recv(65_536):
            said += data
    return said


def split_frames(data: bytes) -> list[Any]:
    frames = []
    while data:
        size = HEADER_BYTES + HEADER.unpack_from(data)[10]
        frames.append(decode(data[:size]))
        data = data[size:]
    return frames


@pytest.fixture
def bystander(worker: WorkerProcess, held: Holdings) -> Iterator[None]:
    """Another backbone, which is served exactly before and after."""

    async def test() -> None:
        edge = await connect(worker, held)
        await Work(held, 14, n_rows=4).check(edge)
        await edge.close()

    yield
    run(test)
    assert worker.process.poll() is None


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("name", STRANGERS)
def test_strangers_are_refused_with_a_reason(worker: WorkerProcess, held: Holdings, name: str) -> None:
    (refusal,) = split_frames(talk(worker, STRANGERS[name](held)))
    assert isinstance(refusal, Refuse)
    expected = {"other version": RefuseCode.VERSION, "worker's role": RefuseCode.ROLE}
    assert refusal.code is expected.get(name, RefuseCode.MALFORMED)
    assert refusal.message


@pytest.mark.usefixtures("bystander")
@pytest.mark.parametrize("name", KNOWN)
def test_backbones_that_break_the_rules_are_left_with_a_reason(
    worker: WorkerProcess, held: Holdings, name: str
) -> None:
    _, fault = split_frames(talk(worker, join(encode(hello(held))) + KNOWN[name](held)))
    assert isinstance(fault, Fault)
    assert (fault.request, fault.code) == (0, FaultCode.PROTOCOL)
    assert fault.message


@pytest.mark.usefixtures("bystander")
def test_half_frames_and_silence_disturb_nobody(worker: WorkerProcess, held: Holdings) -> None:
    beginnings = (b"", b"K", join(encode(hello(held)))[:40], join(encode(hello(held))) + frame(held)[:50])
    streams = [socket.create_connection(("127.0.0.1", worker.port), DEADLINE_S) for _ in range(20)]
    for i, stream in enumerate(streams):
        stream.sendall(beginnings[i % len(beginnings)])

    async def test() -> None:
        edge = await connect(worker, held)
        await Work(held, 15, n_rows=4).check(edge)
        await edge.close()

    run(test)
    for stream in streams:  # some vanish with a reset
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stream.close()


def test_a_backbone_that_reads_nothing_costs_bounded_memory_and_nobody_time(slice_path: Path, held: Holdings) -> None:
    async def test(worker: WorkerProcess) -> None:
        greedy = socket.create_connection(("127.0.0.1", worker.port), DEADLINE_S)
        greedy.sendall(join(encode(hello(held))))
        work = Work(held, 16, n_rows=2000)
        pairs = np.arange(8000, dtype=np.int32) % 2000
        ask = join(
            encode(Dispatch(1, work.layer, held.kernel.row_format, held.d_model, work.rows, pairs, pairs % 6))
        )  # 7.8 MiB of answer for 0.6 MiB
        greedy.setblocking(False)
        unsent = memoryview(ask * 100)
        edge = await connect(worker, held)
        for seed in range(17, 22):
            with contextlib.suppress(BlockingIOError):
                while unsent:
                    unsent = unsent[greedy.send(unsent) :]
            await Work(held, seed, n_rows=8).check(edge)
        assert unsent
        assert worker.rss_bytes() < worker.listening["memory_bytes"] + (16 + 16) * 2**20
        await edge.close()
        greedy.close()

    with worker_process(slice_path, "--max-inflight-mb", "16") as bounded:
        asyncio.run(test(bounded))


# Ends


def test_kill_9_fails_what_is_in_flight_at_once(slice_path: Path, held: Holdings) -> None:
    async def test(worker: WorkerProcess) -> None:
        edge = await connect(worker, held)
        worker.signal(signal.SIGSTOP)  # so that the requests are surely in flight
        calls = [asyncio.create_task(Work(held, seed, n_rows=2).ask(edge)) for seed in range(5)]
        while edge.n_inflight < 5:
            await asyncio.sleep(0)
        worker.signal(signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S / 2):  # the dispatches' own deadline is later
            for call in calls:
                with pytest.raises(EdgeError):
                    await call
            await edge.closed
        with pytest.raises(EdgeError):
            await Work(held, 1, n_rows=1).ask(edge)

    with worker_process(slice_path) as doomed:
        asyncio.run(test(doomed))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_it_finish_and_end_in_order(slice_path: Path, held: Holdings, number: signal.Signals) -> None:
    async def test(worker: WorkerProcess) -> None:
        edge = await connect(worker, held)
        works = [Work(held, seed, n_rows=400) for seed in range(5)]
        worker.signal(signal.SIGSTOP)
        calls = [asyncio.create_task(work.ask(edge)) for work in works]
        while edge.n_inflight < len(calls):
            await asyncio.sleep(0)
        worker.signal(signal.SIGCONT)
        first = await calls[0]
        worker.signal(number)
        for work, outputs in zip(works, [first, *await asyncio.gather(*calls[1:])], strict=True):
            assert outputs.tobytes() == work.expected().tobytes()
        assert number.name in await edge.closed

    with worker_process(slice_path) as stopping:
        asyncio.run(test(stopping))
        assert stopping.next_event() == {"event": "stopped", "reason": f"the worker got {number.name}"}
        assert stopping.ended() == 0
        assert "Traceback" not in stopping.log()


def test_it_can_be_started_again_on_the_same_port(slice_path: Path, held: Holdings) -> None:
    async def test(worker: WorkerProcess) -> None:
        edge = await connect(worker, held)
        await Work(held, 23, n_rows=1).check(edge)

    with worker_process(slice_path) as first:
        asyncio.run(test(first))
        port = first.port
        first.signal(signal.SIGKILL)
        first.ended()
    with worker_process(slice_path, port=port) as second:
        assert second.port == port
        asyncio.run(test(second))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--slice", str(MODEL_PATH)], "is not a slice"),
        (["--slice", "nowhere.gguf"], "the file does not exist"),
        (["--slice", "SLICE", "--listen", "127.0.0.1:BUSY"], "cannot be bound: Address already in use"),
        (["--slice", "SLICE", "--listen", "here"], "is not HOST:PORT"),
    ],
)
def test_a_start_that_cannot_be_is_one_sentence(
    worker: WorkerProcess, slice_path: Path, options: list[str], message: str
) -> None:
    words = [word.replace("SLICE", str(slice_path)).replace("BUSY", str(worker.port)) for word in options]
    done = subprocess.run(
        [sys.executable, "-m", "kvasir.worker", "serve", *words],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_an_idle_worker_fits_the_memory_that_it_states(slice_path: Path, held: Holdings) -> None:
    async def test(worker: WorkerProcess) -> None:
        edge = await connect(worker, held)
        for seed in range(8):
            await Work(held, seed, n_rows=500).check(edge)
        await edge.close()
        assert worker.rss_bytes() <= worker.listening["memory_bytes"]

    with worker_process(slice_path) as fresh:
        asyncio.run(test(fresh))


def test_limits_of_the_backbone_are_kept(worker: WorkerProcess, held: Holdings) -> None:
    async def test() -> None:
        small = hello(held, limits=Limits(max_pairs=3))
        edge = await TcpEdge.connect("127.0.0.1", worker.port, small, deadline_s=DEADLINE_S)
        await Work(held, 24, n_rows=3, n_used=1).check(edge)
        with pytest.raises(WorkerFault, match="TOO_LARGE"):
            await Work(held, 25, n_rows=2, n_used=2).ask(edge)
        await edge.close()

    run(test)
