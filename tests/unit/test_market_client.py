"""A worker's questions to the market, over a transport in memory: what is sent, what is read, what is refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvasir.experts import ExpertRange
from kvasir.worker.agent import market_client
from kvasir.worker.agent.demand import DemandRun
from kvasir.worker.agent.market_client import (
    Assigned,
    Heartbeat,
    MarketAwayError,
    MarketClient,
    MarketRefusedError,
    NothingWanted,
)
from kvasir.worker.agent.plan_state import SiteModel

SITE = "https://site.test"
MODEL = SiteModel("demo", "f" * 64, 4, 8)
ASSIGNED = {
    "assigned": True, "model": "demo", "fingerprint": "f" * 64, "layer": 1, "experts": [2, 5], "scarcity": 0.5,
    "replicas": 1, "target": 2, "n_embd": 64, "n_ff": 32, "n_layer": 4, "n_expert": 8, "bytes": 300,
    "slice_url": "/s", "manifest_url": "/m", "relay_url": "wss://site.test/relay", "kernel": "kx1",
    "rate_microcredits_per_row": 1500, "lease_id": "a" * 16, "lease_s": 60.0,
}  # fmt: skip
NOT_ASSIGNED = {"assigned": False, "reason": "the budget is full", "detail": "0 bytes", "retry_after_s": 70.5}
DEMAND = {
    "target_replicas": 2, "recruiting": True,
    "models": [{
        "model": "demo", "fingerprint": "f" * 64, "n_layer": 4, "n_expert": 8, "target_replicas": 2, "recruiting": True,
        "layers": [{"layer": 1, "segments": [
            {"experts": [0, 2], "replicas": 0, "target": 2, "scarcity": 1.0},
            {"experts": [2, 8], "replicas": 2, "target": 2, "scarcity": 0.0},
        ]}],
    }],
}  # fmt: skip


def ask(question: Callable[[MarketClient], Any], answer: Any) -> tuple[Any, httpx.Request]:
    """What the client makes of an answer (a dict, a Response or an exception), and what it sent."""
    sent: list[httpx.Request] = []

    def reply(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)

    async def scenario() -> Any:
        async with httpx.AsyncClient(transport=httpx.MockTransport(reply)) as client:
            return await question(MarketClient(client, SITE + "/", "kvs-secret"))

    return asyncio.run(scenario()), sent[0]


def refusal(answer: Any) -> MarketAwayError | MarketRefusedError:
    with pytest.raises((MarketAwayError, MarketRefusedError)) as caught:
        ask(lambda market: market.volunteer("node", 1, ()), answer)
    error = caught.value
    assert "secret" not in str(error)
    assert isinstance(error, MarketAwayError | MarketRefusedError)
    return error


def test_a_node_registers_without_a_token() -> None:
    answer = {"node_id": "n1", "token": "kvs-new", "expires": "2030-01-01T00:00:00Z", "account_key": "kva-x"}
    made, request = ask(lambda market: market.register("code", "attic"), httpx.Response(201, json=answer))
    assert (made.node_id, made.token, made.expires) == ("n1", "kvs-new", "2030-01-01T00:00:00Z")
    assert "kvs-new" not in repr(made)
    assert (str(request.url), json.loads(request.content)) == (f"{SITE}/api/nodes", {"name": "attic", "invite": "code"})
    assert "authorization" not in request.headers


def test_a_token_is_exchanged_for_another() -> None:
    made, request = ask(lambda market: market.rotate("n1"), {"token": "kvs-new", "expires": None})
    assert (made.node_id, made.token, made.expires) == ("n1", "kvs-new", "")
    assert request.headers["authorization"] == "Bearer kvs-secret"


def test_a_heartbeat_states_everything_and_learns_its_lease() -> None:
    beat = Heartbeat("n1", MODEL, (ExpertRange(0, 1, 4),), ("b" * 16,), {"os": "Linux"})
    lease_s, request = ask(lambda market: market.heartbeat(beat), {"ok": True, "lease_s": 45.0, "workers": 3})
    assert lease_s == 45.0
    assert str(request.url) == f"{SITE}/api/expert-coverage"
    assert json.loads(request.content) == {
        "worker_id": "n1", "model": "f" * 64, "n_layer": 4, "n_expert": 8, "segments": [[0, 1, 4]],
        "url": "relay:", "leases": ["b" * 16], "leaving": False, "os": "Linux",
    }  # fmt: skip
    _, request = ask(lambda market: market.heartbeat(Heartbeat("n1", MODEL, (), is_leaving=True)), {"lease_s": 0})
    assert json.loads(request.content)["leaving"] is True


def test_the_demand_is_read_as_runs() -> None:
    demand, request = ask(lambda market: market.demand("f" * 64), DEMAND)
    assert str(request.url) == f"{SITE}/api/expert-demand?model={'f' * 64}"
    assert demand.runs == (DemandRun(ExpertRange(1, 0, 2), 0, 2), DemandRun(ExpertRange(1, 2, 8), 2, 2))
    assert [demand.surplus(ExpertRange(1, *span)) for span in ((0, 2), (1, 3), (3, 8))] == [-2, -2, 0]
    assert demand.surplus(ExpertRange(0, 0, 1)) == -1  # nothing is known of it
    assert demand.has_gap_beside([ExpertRange(1, 1, 2)])
    assert not demand.has_gap_beside([ExpertRange(1, 0, 4)])


def test_a_volunteer_says_what_it_holds_and_gets_a_range() -> None:
    held = (ExpertRange(0, 0, 4),)
    found, request = ask(lambda market: market.volunteer("n1", 1000, held), ASSIGNED)
    assert json.loads(request.content) == {"worker_id": "n1", "budget_bytes": 1000, "ranges": [[0, 0, 4]]}
    assert found == Assigned(MODEL, ExpertRange(1, 2, 5), 300, "kx1", 0.5, 1500, "wss://site.test/relay", "a" * 16)


@pytest.mark.parametrize(("reason", "is_crowded"), [("the budget is full", True), ("expert coverage at target", False)])
def test_or_hears_why_there_is_none(reason: str, is_crowded: bool) -> None:
    found, _ = ask(lambda market: market.volunteer("n1", 1, ()), NOT_ASSIGNED | {"reason": reason})
    assert found == NothingWanted(reason, "0 bytes", 70.5)
    assert found.is_crowded is is_crowded


@pytest.mark.parametrize(
    "answer",
    [
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("too late"),
        httpx.Response(502, text="<html>proxy</html>"),
        httpx.Response(302, headers={"location": "https://elsewhere.test/"}),
        httpx.Response(200, text="<html>hello</html>"),
        httpx.Response(200, json=[1]),
        httpx.Response(200, json={"assigned": True}),
        httpx.Response(200, json=ASSIGNED | {"experts": [5, 2]}),
        httpx.Response(200, json=ASSIGNED | {"relay_url": 7}),
        httpx.Response(200, json=NOT_ASSIGNED | {"retry_after_s": "soon"}),
    ],
)
def test_what_may_pass_is_away(answer: Any) -> None:
    assert isinstance(refusal(answer), MarketAwayError)


def error(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "no"}}, headers=headers)


def test_a_site_says_how_long_to_wait() -> None:
    for status, code in ((429, "rate_limit_exceeded"), (503, "redis_lost"), (409, "too_many_leases")):
        away = refusal(error(status, code, **{"retry-after": "17"}))
        assert isinstance(away, MarketAwayError)
        assert away.retry_after_s == 17
        assert code in str(away)
    quarantined = refusal(error(403, "quarantined"))
    assert isinstance(quarantined, MarketAwayError)
    assert quarantined.retry_after_s == market_client.QUARANTINE_RETRY_S


@pytest.mark.parametrize(("status", "code"), [(401, "token_refused"), (403, "invite_needed"), (404, "unknown_model")])
def test_what_will_not_pass_is_refused_with_its_code(status: int, code: str) -> None:
    refused = refusal(error(status, code))
    assert isinstance(refused, MarketRefusedError)
    assert (refused.status, refused.code, str(refused)) == (status, code, f"no ({status} {code})")


def test_a_page_instead_of_an_error_is_refused_without_a_code() -> None:
    refused = refusal(httpx.Response(404, text="not found"))
    assert isinstance(refused, MarketRefusedError)
    assert (refused.status, refused.code) == (404, "")


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(market_client, "ANSWER_BYTES_MOST", 100)
    assert "more than 100 bytes" in str(refusal(httpx.Response(200, text="x" * 1000)))
