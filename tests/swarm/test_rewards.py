"""From a worker behind a relay to its owner's balance, with real processes: what it computed is what it is paid."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import Generation, first_difference, generate
from backbone.process.backbone_process import redis_connection
from backbone.process.market_link import MarketLink
from backbone.sampling_params import SamplingParams
from backbone.service_settings import ServiceSettings
from kvasir.relay.directory import FixedDirectory
from kvasir.wire.frames import Role
from market.ledger.posting import balance
from market.models.work import WorkDay
from market.nodes.trust_store import load
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.site.database import database_at
from tests.swarm.join_process import join_process
from tests.swarm.relay_process import PATIENCE_S, RelayProcess, relay_process
from tests.swarm.swarm import cut

PROMPTS = ([5, 17, 99, 4, 250, 31, 8], [61, 3])
GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K"))


@pytest.fixture
def loaded(model: Path) -> Iterator[LoadedModel]:
    with LoadedModel.open(model, n_slot=2, n_ctx=64, n_threads=1) as opened:
        yield opened


@contextmanager
def dialled(loaded: LoadedModel, relay: RelayProcess) -> Iterator[EdgePool]:
    """The pool, once the worker is there."""
    hello = replace(loaded.hello(), token=relay.tokens[Role.BACKBONE])
    with EdgePool([], hello, relays=FixedDirectory({"relay": relay.url})) as pool:
        until = time.monotonic() + PATIENCE_S
        while not pool.live():
            assert time.monotonic() < until, pool.problems
            time.sleep(0.01)
        yield pool


@contextmanager
def linked(loaded: LoadedModel, model: Path, pool: EdgePool, name: str) -> Iterator[MarketLink]:
    """A backbone's link to the market, from its start to its stop. There is no Redis: nothing of this needs it."""
    settings = ServiceSettings(model, "m", receipts_dir=model.parent / "receipts")
    client = redis_connection("redis://127.0.0.1:1")
    link = MarketLink(settings, name, loaded, pool, client)
    link.start()
    try:
        yield link
    finally:
        link.stop()


def write(loaded: LoadedModel, pool: EdgePool, link: MarketLink) -> Generation:
    run = generate(loaded, pool, PROMPTS, GREEDY, guard=link.guard)
    link.guard.settle()
    return run


def test_a_node_is_paid_what_its_worker_computed(loaded: LoadedModel, model: Path, tmp_path: Path) -> None:
    (path,) = cut(model, [(0, 8)], tmp_path)
    with relay_process(tmp_path) as relay, ExitStack() as stack:
        worker = stack.enter_context(join_process(relay.url, relay.tokens[Role.WORKER], path, tmp_path))
        assert worker.says()["event"] == "joined"
        stack.enter_context(database_at(relay.database))
        with dialled(loaded, relay) as pool, linked(loaded, model, pool, "b1") as link:
            run = write(loaded, pool, link)
        assert first_difference(run, generate(loaded, NoWorkers(), PROMPTS, GREEDY)) is None
        node_id = relay.tokens[Role.WORKER].split("-")[1]
        days = WorkDay.objects.filter(reason="")
        n_paid = sum(days.values_list("row_experts", flat=True))
        assert n_paid == run.tally.pairs_by_worker.total() > 0
        assert balance(f"node:{node_id}") == 1000 * n_paid
        assert set(days.values_list("node_id", flat=True)) == {node_id}
        saved = load(node_id)
        assert saved is not None and saved.verified >= n_paid
        assert list((tmp_path / "receipts").iterdir()) == []
        out = StringIO()
        call_command("verify_ledger", stdout=out, stderr=StringIO())
        assert "sound" in out.getvalue()
