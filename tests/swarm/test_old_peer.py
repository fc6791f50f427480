"""A worker and a database of commit 375c5be go on working: their recorded bytes against the site as it is now."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import struct
import threading
import time
import types
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import call_command
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import first_difference, generate
from backbone.models import ApiKey
from backbone.process import market_link
from backbone.sampling_params import SamplingParams
from market.ledger.posting import balance
from market.models.ledger import LedgerEvent
from market.models.nodes import NodeToken
from market.models.work import WorkDay
from market.nodes.tokens import TokenScope
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.site.database import database_at
from tests.swarm.redis_fixture import running_redis
from tests.swarm.relay_process import PATIENCE_S, relay_process
from tests.swarm.test_rewards import PROMPTS, dialled, linked

GOLDEN = Path(__file__).parents[1] / "golden" / "old_peer"
DEMO = Path(__file__).resolve().parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
WORKER: dict[str, Any] = json.loads((GOLDEN / "worker.json").read_text())
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)  # as when it was recorded
HELLO, DISPATCH, GOAWAY, PING, PONG = 1, 4, 8, 9, 10


class OldWorker:
    """A socket that repeats what the worker said. Bytes are read and written with `struct`, not by Kvasir's codec."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._recorded = (GOLDEN / "answers.bin").read_bytes()
        self._answers = {item["asked_sha256"]: item for item in WORKER["answers"]}
        self.n_answered = 0
        self.unknown: list[str] = []

    async def run(self) -> None:
        async with connect(self._url, compression=None, max_size=None, ping_interval=None, proxy=None) as socket:
            await socket.send(bytes.fromhex(WORKER["opening"]))
            try:
                async for message in socket:
                    assert isinstance(message, bytes)
                    await self._read(socket, message)
            except ConnectionClosed:
                return

    async def _read(self, socket: ClientConnection, message: bytes) -> None:
        at = 0
        while at < len(message):
            edge, length = struct.unpack_from("<II", message, at)
            frame, at = message[at + 8 : at + 8 + length], at + 8 + length
            answer = self._answer(frame) if edge else None
            if answer is not None:
                await socket.send(struct.pack("<II", edge, len(answer)) + answer)

    def _answer(self, frame: bytes) -> bytes | None:
        kind, (request,) = frame[5], struct.unpack_from("<I", frame, 8)
        if kind == HELLO:
            return bytes.fromhex(WORKER["welcome"])
        if kind == PING:
            return _signed(frame[:5] + bytes([PONG]) + frame[6:])
        if kind != DISPATCH:
            return None
        asked = hashlib.sha256(frame[:8] + bytes(4) + frame[12:32] + bytes(4) + frame[36:]).hexdigest()
        if asked not in self._answers:
            self.unknown.append(asked)
            return None
        self.n_answered += 1
        found = self._answers[asked]
        recorded = self._recorded[found["at"] : found["at"] + found["bytes"]]
        return _signed(recorded[:8] + struct.pack("<I", request) + recorded[12:])


def _signed(frame: bytes) -> bytes:
    """The frame with its checksum: CRC-32 over the first 32 bytes and the payload."""
    return frame[:32] + struct.pack("<I", zlib.crc32(frame[:32] + frame[36:])) + frame[36:]


@contextmanager
def old_worker(url: str) -> Iterator[OldWorker]:
    """The recorded worker, joined until the end."""
    worker, loop = OldWorker(url), asyncio.new_event_loop()
    task = loop.create_task(worker.run())
    thread = threading.Thread(target=lambda: loop.run_until_complete(asyncio.wait([task])), daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(PATIENCE_S)
        loop.close()


def _known_here(token: str) -> str:
    """Make the recorded token one of this database's; returns its node's id."""
    node_id, digest = token.split("-")[1], hashlib.sha256(token.encode()).digest()
    NodeToken.objects.create(public_id=node_id, digest=digest, scope=TokenScope.WORKER, name="old")
    return node_id


def test_an_old_worker_is_asked_in_the_same_bytes_is_believed_and_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draws of the entry test are those of the recording, so that the recorded answers fit."""
    monkeypatch.setattr(market_link, "secrets", types.SimpleNamespace(token_bytes=lambda n: bytes(range(n))))
    model = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    with relay_process(tmp_path) as relay, ExitStack() as stack:
        stack.enter_context(database_at(relay.database))
        node_id = _known_here(WORKER["token"])
        old = stack.enter_context(old_worker(relay.url))
        loaded = stack.enter_context(LoadedModel.open(model, n_slot=2, n_ctx=64, n_threads=1))
        with dialled(loaded, relay) as pool, linked(loaded, model, pool, "b1") as link:
            until = time.monotonic() + PATIENCE_S
            while not link.guard.usable(pool.live()):
                assert time.monotonic() < until, (old.unknown, pool.problems)
                time.sleep(0.02)
            run = generate(loaded, pool, PROMPTS, GREEDY, guard=link.guard)
            link.guard.settle()
        assert first_difference(run, generate(loaded, NoWorkers(), PROMPTS, GREEDY)) is None
        assert (old.unknown, old.n_answered) == ([], len(WORKER["answers"]))
        n_paid = sum(WorkDay.objects.filter(reason="", node_id=node_id).values_list("row_experts", flat=True))
        assert n_paid == run.tally.pairs_by_worker.total() > 0
        assert balance(f"node:{node_id}") == 1000 * n_paid


def test_what_an_old_worker_asks_of_the_site_is_answered_in_the_same_form(tmp_path: Path) -> None:
    """Status and fields as they were: fields may have come, none may be gone."""
    requests: list[dict[str, Any]] = json.loads((GOLDEN / "http.json").read_text())
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis(tmp_path))
        environment = {"REDIS_URL": redis.url, "KVASIR_MODEL": str(DEMO), "KVASIR_RUN_DIR": str(tmp_path / "run")}
        relay = stack.enter_context(relay_process(tmp_path, 0, **environment))
        url = relay.url.replace("ws://", "http://").removesuffix("/relay")
        client = stack.enter_context(httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False))
        new: dict[str, str] = {}  # what this site calls what the recording names
        for request in requests:
            headers, body = request["headers"], request["body"]
            for old, now in new.items():
                body = body.replace(old, now)
                headers = {name: value.replace(old, now) for name, value in headers.items()}
            answer = client.request(request["method"], request["path"], headers=headers, content=body)
            assert answer.status_code == request["status"], (request["path"], answer.text)
            if "answer" not in request:
                assert hashlib.sha256(answer.content).hexdigest() == request["answer_sha256"]
                continue
            assert lost_fields(request["answer"], answer.json()) == []
            for name in ("token", "node_id", "lease"):
                if name in request["answer"]:
                    new[request["answer"][name]] = answer.json()[name]


def lost_fields(before: object, now: object, at: str = "") -> list[str]:
    """Names of fields that an answer had and has no more, and of those whose type has changed."""
    if isinstance(before, dict) and isinstance(now, dict):
        lost = [f"{at}.{name}" for name in before if name not in now]
        return lost + [
            f for name in before if name in now for f in lost_fields(before[name], now[name], f"{at}.{name}")
        ]
    if isinstance(before, list) and isinstance(now, list):
        return lost_fields(before[0], now[0], f"{at}[0]") if before and now else []
    return [] if isinstance(now, type(before)) else [f"{at}: {type(now).__name__}"]


def test_an_old_database_is_upgraded_with_all_that_it_holds(tmp_path: Path) -> None:
    """Migrated, sound, and with the balances, tokens and keys that it had."""
    path = tmp_path / "old.sqlite3"
    database = sqlite3.connect(path)
    database.executescript((GOLDEN / "database.sql").read_text())
    balances = "SELECT name, microcredits FROM market_ledgeraccount JOIN market_ledgerbalance ON id = account_id"
    rows = dict(database.execute(balances).fetchall())
    database.close()
    with database_at(path):
        call_command("migrate", verbosity=0)
        call_command("makemigrations", check=True, dry_run=True, verbosity=0)
        out = StringIO()
        call_command("verify_ledger", stdout=out, stderr=StringIO())
        assert "sound" in out.getvalue()
        assert {name: balance(name) for name in rows} == rows and len(rows) == 3
        assert LedgerEvent.objects.count() == 1 and NodeToken.objects.count() == 3
        assert [key.name for key in ApiKey.objects.all()] != []
