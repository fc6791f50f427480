"""Real backbone processes for tests: Celery workers over a real Redis, asked through `backbone.stream.client`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from backbone.sampling_params import SamplingParams
from backbone.service_settings import celery_command
from backbone.stream import client as stream
from backbone.stream.client import StreamSettings
from backbone.stream.events import Event, Token
from backbone.stream.keys import BACKBONES, lease_key
from backbone.stream.payloads import GenerationRequest, RequestKind
from kvasir_site.typed_settings import service_settings
from kvasir_site.variables import read_environment
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.oracles.tiny_layout import TinyShape
from tests.swarm.redis_fixture import RedisServer

T = TypeVar("T")
START_DEADLINE_S = 60.0
TEST_DEADLINE_S = 60.0
MODEL = "tiny"
SHAPE = TinyShape(n_layer=2, n_ctx=8192)
NEVER_ENDING = {"267": -100.0, "268": -100.0, "269": -100.0}  # no special token, so no end of the text
ROOT = Path(__file__).resolve().parents[2]


def write_model(directory: Path) -> Path:
    return write_tiny(directory / "tiny.gguf", TinyModel("qwen3moe", "Q4_K", shape=SHAPE))


@dataclass(slots=True)
class Backbone:
    """One process, and where its log is."""

    process: subprocess.Popen[bytes]
    log: Path
    id: str = ""

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)

    def stop(self) -> int:
        """Ask it to leave; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


@contextmanager
def backbones(
    redis: RedisServer, model: Path, log_dir: Path, *, n_processes: int = 1, **environ: str
) -> Iterator[list[Backbone]]:
    """Processes that have taken their leases. Killed in the end, if they still run."""
    started = [_start(redis, model, log_dir, environ) for _ in range(n_processes)]
    try:
        for one in started:
            one.id = _wait_lease(redis, one)
        yield started
    finally:
        for one in started:
            if one.process.poll() is None:
                one.kill()


def _start(redis: RedisServer, model: Path, log_dir: Path, environ: dict[str, str]) -> Backbone:
    name = f"b{uuid.uuid4().hex[:8]}"
    asked = {"KVASIR_SLOTS": "4", "KVASIR_MAX_WAITING": "8", "KVASIR_THREADS": "1", "KVASIR_CTX": "8192"} | environ
    asked |= {"KVASIR_MODEL": str(model), "REDIS_URL": redis.url, "PYTHONUNBUFFERED": "1"}
    settings = service_settings(read_environment(asked))
    log = log_dir / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            celery_command(settings, name),
            cwd=ROOT, env=os.environ | asked, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
    return Backbone(process, log)


def alive(redis: RedisServer) -> list[str]:
    with redis.client() as client:
        members: Any = client.smembers(BACKBONES)
        return [member for member in members if client.exists(lease_key(member))]


def _wait_lease(redis: RedisServer, started: Backbone) -> str:
    """The process's id; ids end with the number of their process."""
    until = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < until and started.process.poll() is None:
        for backbone_id in alive(redis):
            if backbone_id.endswith(f"-{started.process.pid}"):
                return backbone_id
        time.sleep(0.05)
    raise AssertionError(f"the backbone did not come up: {started.log.read_text()[-3000:]}")


def completion(
    prompt: Any = "hello world", *, n: int = 1, deadline_s: float = 60.0, **sampling: Any
) -> GenerationRequest:
    asked = SamplingParams.from_values({"temperature": 0.8, "seed": 7, "max_tokens": 12} | sampling)
    return GenerationRequest(
        uuid.uuid4().hex, MODEL, RequestKind.COMPLETION, deadline_s, time.time(), prompt=prompt, n=n, sampling=asked
    )


def endless(**sampling: Any) -> GenerationRequest:
    """A request that runs for far longer than any test."""
    return completion(max_tokens=8000, logit_bias=NEVER_ENDING, deadline_s=300.0, **sampling)


class Client:
    """What the web would do, with one Redis."""

    def __init__(self, redis: RedisServer, queue_wait_s: float = 60.0) -> None:
        self.settings = StreamSettings(redis.url, 1000, queue_wait_s)

    async def send(self, request: GenerationRequest) -> str:
        await stream.enqueue(request, self.settings)
        return request.request_id

    async def events(
        self, request_id: str, last_id: str = "0", until: Callable[[list[Event]], bool] = lambda events: False
    ) -> list[Event]:
        """All events to the end, or until enough have come."""
        found: list[Event] = []
        reading = stream.read(request_id, last_id, self.settings)
        async for entry in reading:
            found.append(entry.event)
            if until(found):
                break
        await reading.aclose()
        return found

    async def ask(self, request: GenerationRequest) -> list[Event]:
        return await self.events(await self.send(request))


def run(work: Callable[[], Awaitable[T]]) -> T:
    """In an event loop of its own, bounded."""

    async def guarded() -> T:
        try:
            return await asyncio.wait_for(work(), TEST_DEADLINE_S)
        finally:
            await stream.close_clients()

    return asyncio.run(guarded())


def text_of(events: list[Event], choice: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Token) and event.choice == choice)


def has_tokens(n_tokens: int) -> Callable[[list[Event]], bool]:
    return lambda events: sum(isinstance(event, Token) for event in events) >= n_tokens
