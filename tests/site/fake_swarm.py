"""A swarm in memory for tests of the API: scripted events, nothing that blocks, everything recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

from backbone.stream.client import StreamEntry
from backbone.stream.directory import ModelEntry
from backbone.stream.events import Done, End, Event, Queued, Started, SwarmShare, Token, TopLogprob, Usage
from backbone.stream.payloads import GenerationRequest
from backbone.stream.request_record import RequestRecord
from backbone.stream.request_trace import RequestTrace
from market.rate_limits import Rate

MODEL = ModelEntry("demo", "fp_0123", 512, "qwen3moe", 1_700_000_000)
Script = Callable[[GenerationRequest], Sequence[Event]]


def answer(request: GenerationRequest) -> list[Event]:
    """Two tokens for each choice, the second without a text of its own."""
    events: list[Event] = [Queued(1), Started(3, "demo", "fp_0123", "b1")]
    for choice in range(request.n):
        events += [token(request, choice, 7, f"Hé{choice}"), token(request, choice, 8, ""), End(choice, "stop", 2)]
    return [*events, Done(Usage(3, 2 * request.n), SwarmShare(100, 0.75, 0.0, 0.25))]


def token(request: GenerationRequest, choice: int, number: int, text: str) -> Token:
    """A token event, with log-probabilities where the request asks for them."""
    n_top = request.sampling.logprobs
    if n_top is None:
        return Token(choice, number, text)
    data = text.encode() or b"\xe2\x80"
    tops = [TopLogprob(number, data, -0.25), TopLogprob(9, b"x", -2.0)]
    return Token(choice, number, text, data, -0.25, tuple(tops[:n_top]))


class FakeSwarm:
    """Attributes are what a test changes and looks at. A script that ends without a last event hangs."""

    def __init__(self, script: Script = answer) -> None:
        self.script = script
        self.entries: list[ModelEntry] = [MODEL]
        self.alive: list[str] = ["b1"]
        self.counters: dict[str, dict[str, float]] = {}
        self.waits: dict[str, float] = {}  # by the beginning of a bucket's name
        self.failure: Exception | None = None  # of every look at Redis
        self.enqueue_failures: list[Exception | None] = []  # of the next requests, in order
        self.requests: list[GenerationRequest] = []
        self.records: dict[str, RequestRecord] = {}
        self.traces: dict[str, RequestTrace] = {}
        self.taken: list[tuple[str, Rate]] = []
        self.cancelled: list[str] = []
        self.n_reading = 0
        self.was_cancelled = asyncio.Event()
        self.has_hung = asyncio.Event()

    async def enqueue(self, request: GenerationRequest) -> int:
        failure = self.enqueue_failures.pop(0) if self.enqueue_failures else None
        if failure is not None:
            raise failure
        self.requests.append(GenerationRequest.from_json(request.to_json()))
        return len(self.requests) - 1

    async def read(self, request_id: str) -> AsyncGenerator[StreamEntry, None]:
        request = next(request for request in self.requests if request.request_id == request_id)
        self.n_reading += 1
        try:
            for number, event in enumerate(self.script(request), 1):
                yield StreamEntry(f"{number}-0", event)
            self.has_hung.set()
            await asyncio.Event().wait()
        finally:
            self.n_reading -= 1

    async def cancel(self, request_id: str) -> bool:
        self.cancelled.append(request_id)
        self.was_cancelled.set()
        return True

    async def record(self, request_id: str) -> RequestRecord | None:
        self._look()
        return self.records.get(request_id)

    async def trace(self, request_id: str) -> RequestTrace | None:
        self._look()
        return self.traces.get(request_id)

    async def models(self) -> Sequence[ModelEntry]:
        self._look()
        return self.entries

    async def backbones(self) -> Sequence[str]:
        self._look()
        return self.alive

    async def stats(self) -> Mapping[str, Mapping[str, float]]:
        self._look()
        return self.counters

    async def queue_length(self) -> int:
        self._look()
        return len(self.requests)

    async def take(self, bucket: str, rate: Rate) -> float:
        self._look()
        self.taken.append((bucket, rate))
        return next((wait for start, wait in self.waits.items() if bucket.startswith(start)), 0.0)

    def _look(self) -> None:
        if self.failure is not None:
            raise self.failure
