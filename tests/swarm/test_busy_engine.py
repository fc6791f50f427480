"""While the engine's thread sits in a kernel, workers' pings are answered and their answers taken up.

The kernel call is one of the C library's kind, foreign code without the GIL, that ends when the test says so.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.transport import NoWorkers
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.management.generation import DispatchSettings, Generation, first_difference, generate
from backbone.sampling_params import SamplingParams
from kvasir.experts import ExpertRange, FloatRows
from kvasir.kernels import native
from kvasir.kernels.api import EncodedRows, LoadedExperts, Pairs
from kvasir.wire.codec import FrameDecoder, encode
from kvasir.wire.frames import Dispatch, Frame, Hello, Ping, Pong, Result, Welcome
from kvasir.wire.header import Limits
from tests.unit.engine_service import SHAPE, tiny_model

DEADLINE_S = 60.0  # of waiting, where only a failure takes long
HELD = tuple(ExpertRange(layer, 0, SHAPE.n_expert // 2) for layer in range(SHAPE.n_layer))
PARAMS = SamplingParams(temperature=0.0, max_tokens=3)
PROMPTS = [[5, 9, 200, 17, 61, 3]]


class LongCall:
    """A foreign call that the first caller sits in until it is let go."""

    def __init__(self) -> None:
        self.is_begun = threading.Event()
        self.is_over = threading.Event()
        self._read_end, self._write_end = os.pipe()
        self._is_first = True

    def __call__(self) -> None:
        if self._is_first:
            self._is_first = False
            self.is_begun.set()
            ctypes.CDLL(None).read(self._read_end, ctypes.create_string_buffer(1), ctypes.c_size_t(1))
            self.is_over.set()

    def let_go(self) -> None:
        os.write(self._write_end, b"x")


class SlowExperts:
    """The backbone's own experts of a layer, behind the long call."""

    def __init__(self, experts: LoadedExperts, call: LongCall) -> None:
        self._experts = experts
        self._call = call
        self.layer, self.n_expert, self.d_model = experts.layer, experts.n_expert, experts.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        self._call()
        return self._experts.compute(rows, pair_rows, pair_ids)


class PingingWorker:
    """Holds half of each layer, and answers nothing before its ping was answered while the backbone computes."""

    def __init__(self, loaded: LoadedModel, call: LongCall) -> None:
        self._layers = [loaded.store.layer(layer) for layer in range(SHAPE.n_layer)]  # not behind the call
        self._hello = loaded.hello()
        self._row_format = loaded.store.kernel.row_format
        self._call = call
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.n_pongs = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            waiting: list[Dispatch] = []
            for frame in self._frames(connection):
                match frame:
                    case Hello():
                        self._send(connection, self._welcome())
                    case Dispatch():
                        assert self._call.is_begun.wait(DEADLINE_S)
                        waiting.append(frame)
                        self._send(connection, Ping(frame.request))
                    case Pong():
                        self.n_pongs += 1
                        self._send(connection, self._answer(waiting.pop(0)))
                    case Ping(number):
                        self._send(connection, Pong(number))

    def _frames(self, connection: socket.socket) -> Iterator[Frame]:
        decoder = FrameDecoder()
        while data := connection.recv(1 << 16):
            yield from decoder.feed(data)

    def _send(self, connection: socket.socket, frame: Frame) -> None:
        connection.sendall(b"".join(encode(frame)))

    def _welcome(self) -> Welcome:
        hello, d_model = self._hello, self._layers[0].d_model
        names = hello.model_fingerprint, hello.kernel_fingerprint, hello.kernel
        return Welcome(*names, self._row_format, d_model, HELD, Limits(), "pinging")

    def _answer(self, asked: Dispatch) -> Result:
        ids = asked.pair_ids.astype(np.int32)  # these ranges begin with expert 0
        outputs = self._layers[asked.layer].compute(asked.rows, asked.pair_rows.astype(np.int32), ids)
        return Result(asked.request, asked.layer, outputs)


@contextmanager
def generating(loaded: LoadedModel, pool: EdgePool) -> Iterator[list[Generation]]:
    """An engine in a thread of its own; what it made is in the list when the context has ended."""
    done: list[Generation] = []
    patient = DispatchSettings(deadline_s=DEADLINE_S)
    thread = threading.Thread(target=lambda: done.append(generate(loaded, pool, PROMPTS, PARAMS, settings=patient)))
    thread.start()
    try:
        yield done
    finally:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_a_ping_and_an_answer_are_taken_up_while_the_engine_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LoadedModel.open(tiny_model(tmp_path), n_slot=1, n_threads=1) as loaded:
        alone = generate(loaded, NoWorkers(), PROMPTS, PARAMS)
        call = LongCall()
        worker = PingingWorker(loaded, call)
        own_layer = loaded.store.layer
        monkeypatch.setattr(loaded.store, "layer", lambda layer: SlowExperts(own_layer(layer), call))
        with EdgePool([WorkerAddress.parse(worker.address)], loaded.hello()) as pool:
            pool.wait_connected(worker.address, DEADLINE_S)
            with generating(loaded, pool) as done:
                try:
                    assert call.is_begun.wait(DEADLINE_S)
                    # it was asked before the call began, so nothing under way means that its answer is there
                    until(lambda: pool.measurements()[worker.address].n_pairs_under_way == 0)
                    assert worker.n_pongs == 1
                    assert not call.is_over.is_set() and not done
                finally:
                    call.let_go()
            (over_workers,) = done
        worker.close()
    assert first_difference(over_workers, alone) is None
    assert over_workers.tally.pairs_by_worker[worker.address] > 0
    assert worker.n_pongs > 1


def test_kernels_are_called_without_the_gil() -> None:
    assert type(native.load().lib) is ctypes.CDLL  # a PyDLL, which is one too, would keep it


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "what the test waits for did not happen"
        time.sleep(0.002)
