"""From a node's lie to what its owner is shown: quarantine, evidence, nothing paid since the last good check."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.edge_pool import EdgePool
from backbone.engine.swarm.worker_address import WorkerAddress
from backbone.engine.trust.guard import WorkGuard
from backbone.engine.trust.receipts import UNCHECKED
from backbone.engine.trust.standing import TrustPolicy
from backbone.management.generation import generate
from backbone.process import market_link
from backbone.process.backbone_process import redis_connection
from backbone.process.market_link import MarketLink
from backbone.sampling_params import SamplingParams
from backbone.service_settings import ServiceSettings
from kvasir.worker.serving.holdings import open_holdings
from market.ledger.rewards_report import Page, rewards
from market.nodes.identity import account_of, register
from market.settings import MarketSettings
from tests.oracles.tiny_gguf import TinyModel, write_tiny
from tests.site.database import database_at
from tests.swarm.liars import Answer, EveryNth, NotANumber, Replaying
from tests.swarm.swarm import cut, lying, serving

PROMPTS = ([5, 17, 99, 4, 250, 31, 8], [61, 3])
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)
N_ENTRY_ANSWERS = 8  # at most: one question a layer
CHECKED_AFTER_USE = TrustPolicy(proven_after=0, first_share=1.0, least_share=1.0)
LIARS: dict[str, Callable[[], Answer]] = {
    "wrong numbers": lambda: EveryNth(100, first=30),
    "replays": lambda: Replaying(N_ENTRY_ANSWERS + 4),
    "not a number": lambda: NotANumber(N_ENTRY_ANSWERS + 4),
}


@contextmanager
def linked(loaded: LoadedModel, model: Path, address: str, folder: Path) -> Iterator[tuple[MarketLink, EdgePool]]:
    """A backbone's link to the market, from its start to its stop, without Redis."""
    with EdgePool([WorkerAddress.parse(address)], loaded.hello()) as pool:
        client = redis_connection("redis://127.0.0.1:1")
        link = MarketLink(ServiceSettings(model, "m", receipts_dir=folder / "receipts"), "b1", loaded, pool, client)
        link.start()
        try:
            yield link, pool
        finally:
            link.stop()


@pytest.mark.parametrize("kind", LIARS)
@pytest.mark.parametrize("policy", [TrustPolicy(), CHECKED_AFTER_USE], ids=["unproven", "proven"])
def test_a_lie_is_not_paid_and_its_teller_is_shown_why(
    kind: str, policy: TrustPolicy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_tiny(tmp_path / "m.gguf", TinyModel("qwen3moe", "Q4_K"))
    (path,) = cut(model, [(0, 16)], tmp_path)
    monkeypatch.setattr(market_link, "WorkGuard", partial(WorkGuard, policy=policy))
    with ExitStack() as stack:
        stack.enter_context(database_at(tmp_path / "db.sqlite3"))
        node = register(MarketSettings(), "liar")
        monkeypatch.setattr(EdgePool, "node_of", lambda _pool, _worker: node.node_id)
        (address,) = stack.enter_context(serving([lying(open_holdings(path, "auto", 1), LIARS[kind]())]))
        loaded = stack.enter_context(LoadedModel.open(model, n_slot=2, n_ctx=64, n_threads=1))
        with linked(loaded, model, address, tmp_path) as (link, pool):
            run = generate(loaded, pool, PROMPTS, GREEDY, guard=link.guard)
            link.guard.settle()
        told = rewards(account_of(node.account_key), Page())
        check(told, node.node_id, run.tally.pairs_by_worker.total(), is_proven=policy is CHECKED_AFTER_USE)
        call_command("verify_ledger", stdout=(out := StringIO()), stderr=StringIO())
        assert "sound" in out.getvalue()


def check(told: dict[str, Any], node_id: str, n_used: int, *, is_proven: bool) -> None:
    (standing,) = told["nodes"]
    assert (standing["node_id"], standing["quarantined"], standing["failures"]) == (node_id, True, 1)
    (evidence,) = standing["evidence"]
    assert evidence["expected_hash"] != evidence["answered_hash"]
    assert told["earned_microcredits"] == told["balance_microcredits"] == 1000 * told["paid_row_experts"]
    unpaid = [item for item in told["items"] if not item["paid"]]
    proven = f"a wrong answer was proven (evidence {evidence['evidence_id']})"
    assert {item["reason"] for item in unpaid} <= {proven, UNCHECKED}
    if is_proven:  # what was used before the lie was found, and was not vouched for
        assert told["paid_row_experts"] + told["unpaid_row_experts"] == n_used
        assert bool(unpaid) or evidence["found_by"] == "confirmation"
    else:  # each answer was confirmed before it counted: there is nothing to take back
        assert (told["paid_row_experts"], unpaid) == (n_used, [])
