"""Workers for tests: servers over real TCP in a thread of this process, hostile ones, and slices for all of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kvasir.experts import ExpertRange, FloatRows
from kvasir.gguf.index import GGUFIndex
from kvasir.kernels.api import EncodedRows, ExpertKernel, LoadedExperts, Pairs
from kvasir.slicing.model_card import ModelCard
from kvasir.slicing.slice_file import SliceFile
from kvasir.slicing.slices import plan_slice, write_slice
from kvasir.worker.serving.config import WorkerConfig
from kvasir.worker.serving.holdings import Holdings, open_holdings
from kvasir.worker.serving.serve import WorkerServer

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for servers."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


def cut(model: Path, parts: Sequence[tuple[int, int]], into: Path) -> list[Path]:
    """One slice a part: experts start up to stop of every MoE layer."""
    into.mkdir(parents=True, exist_ok=True)
    paths = []
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        for number, (start, stop) in enumerate(parts):
            path = into / f"{model.stem}-{number}-{start}-{stop}.gguf"
            write_slice(plan_slice(index, card, [ExpertRange(layer, start, stop) for layer in card.moe_layers]), path)
            paths.append(path)
    return paths


def even_parts(n_expert: int, n_workers: int) -> list[tuple[int, int]]:
    """Experts dealt out in consecutive ranges, every worker at least one."""
    bounds = np.linspace(0, n_expert, n_workers + 1).astype(int).tolist()
    return list(pairwise(bounds))


def holdings_with(path: Path, kernel: ExpertKernel) -> Holdings:
    """A slice loaded into a given build of the kernel."""
    slice_file = SliceFile.open(path)
    plain = open_holdings(path, "auto", 1)
    layers = {layer: kernel.load(experts) for layer, experts in slice_file.layers.items()}
    return replace(plain, kernel=kernel, layers=layers)


class Lying:
    """Experts that answer with something else: the holder decides what, and when."""

    def __init__(self, honest: LoadedExperts, answer: Any) -> None:
        self._honest = honest
        self._answer = answer

    @property
    def layer(self) -> int:
        return self._honest.layer

    @property
    def n_expert(self) -> int:
        return self._honest.n_expert

    @property
    def d_model(self) -> int:
        return self._honest.d_model

    def compute(self, rows: EncodedRows, pair_rows: Pairs, pair_ids: Pairs) -> FloatRows:
        answered: FloatRows = self._answer(self._honest.compute(rows, pair_rows, pair_ids))
        return answered


def lying(holdings: Holdings, answer: Any) -> Holdings:
    """The same holdings, with `answer(outputs)` in place of each output."""
    return replace(holdings, layers={layer: Lying(experts, answer) for layer, experts in holdings.layers.items()})


@contextmanager
def serving(all_holdings: Sequence[Holdings]) -> Iterator[list[str]]:
    """Serve holdings on free ports of the loopback; yields the addresses."""
    thread = LoopThread()
    with ExitStack() as stack:
        stack.callback(thread.close)
        addresses = []
        for holdings in all_holdings:
            server = WorkerServer(WorkerConfig(Path("unused"), port=0), holdings)

            async def start(server: WorkerServer = server) -> tuple[str, int]:
                return await server.start()

            host, port = thread.run(start())
            stack.callback(stop, thread, server)
            addresses.append(f"{host}:{port}")
        yield addresses


def stop(thread: LoopThread, server: WorkerServer) -> None:
    thread.run(server.stop("the test is over"))
