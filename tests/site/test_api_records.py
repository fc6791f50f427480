"""Records of requests over the API: who may read one, what it says, and what the usage of a reply says at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backbone.api.keys.store import KeyScope, issue
from backbone.api.schemas import RequestReply, UsageReply
from backbone.stream.events import Done, Event, Failed, SwarmShare, Usage
from backbone.stream.payloads import GenerationRequest
from backbone.stream.request_record import RequestRecord
from market.nodes.trust_store import SavedTrust, save
from tests.site.api_client import Site
from tests.site.fake_swarm import answer
from tests.site.ledger_evidence import evidence

ID = "0123456789abcdef" * 2
SHARE = SwarmShare(100, 0.75, 0.0, 0.25, True, ("liar",), ("ann", "liar"))


def key_id(key: str) -> str:
    return key.split("-")[1]


def record(site: Site, **changes: object) -> RequestRecord:
    made = RequestRecord(ID, key_id(site.key), "demo", 10.5, 12.5, False, Done(Usage(3, 2), SHARE), ("ann", "liar"))
    return replace(made, **changes)  # type: ignore[arg-type]


def flagged_answer(request: GenerationRequest) -> list[Event]:
    names = (request.request_id[:4], "liar")
    share = replace(SHARE, flagged=request.prompt == "b", flagged_workers=("liar",) if request.prompt == "b" else ())
    return [*answer(request)[:-1], Done(Usage(3, 2), replace(share, unconfirmed=names))]


def test_it_works(site: Site) -> None:
    site.swarm.records[ID] = record(site, flags={"e1": "liar"})
    for name in (ID, f"cmpl-{ID}", f"chatcmpl-{ID}"):
        reply = site.get(f"/v1/requests/{name}")
        assert reply.status == 200
        RequestReply.model_validate(reply.json)
        assert reply.json == {
            "id": ID,
            "object": "request",
            "model": "demo",
            "created": 10,
            "ended": 12,
            "strict": False,
            "error_code": None,
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
            "shares": {"row_experts": 100, "workers": 0.75, "hot": 0.0, "fallback": 0.25},
            "flagged": True,
            "flags": [{"worker": "liar", "evidence_id": "e1"}],
            "unconfirmed": ["ann", "liar"],
        }


def test_a_request_that_failed_has_a_record_too(site: Site) -> None:
    site.swarm.records[ID] = record(site, end=Failed(504, "deadline_exceeded", "late"))
    reply = site.get(f"/v1/requests/{ID}").json
    RequestReply.model_validate(reply)
    assert (reply["error_code"], reply["usage"], reply["shares"]) == ("deadline_exceeded", None, None)
    assert (reply["flagged"], reply["unconfirmed"]) == (False, ["ann", "liar"])


def test_a_lie_counts_though_the_backbone_that_served_is_gone(site: Site) -> None:
    site.swarm.records[ID] = record(site, unconfirmed=("pam", "rob"), flags={"e2": "rob"})
    caught = SavedTrust(failures=1, quarantined=True, evidence_id="x")
    for name, node_id, at in (("e0", "rob", 10.0), ("e1", "pam", 11.0), ("e2", "rob", 12.0), ("e3", "eve", 13.0)):
        save(node_id, caught, evidence(node_id, name, at).as_json())
    flags = site.get(f"/v1/requests/{ID}").json["flags"]
    assert flags == [{"worker": "pam", "evidence_id": "e1"}, {"worker": "rob", "evidence_id": "e2"}]
    site.swarm.records[ID] = record(site, unconfirmed=())
    assert site.get(f"/v1/requests/{ID}").json["flagged"] is False


def test_nobody_else_may_read_it(site: Site) -> None:
    site.swarm.records[ID] = record(site)
    other = issue([KeyScope.GENERATE], "other").text
    hidden = site.get(f"/v1/requests/{ID}", Authorization=f"Bearer {other}")
    nothing = site.get(f"/v1/requests/{'f' * 32}")
    assert (hidden.status, hidden.error) == (404, nothing.error)
    assert hidden.error["code"] == "request_not_found"
    metrics = issue([KeyScope.METRICS], "metrics").text
    assert site.get(f"/v1/requests/{ID}", Authorization=f"Bearer {metrics}").status == 403
    assert site.get(f"/v1/requests/{ID}", Authorization="").status == 401
    site.swarm.records[ID] = record(site, owner="")
    assert site.get(f"/v1/requests/{ID}").status == 404


@pytest.mark.parametrize("name", ["x", "cmpl-", ID[:-1], ID.upper(), f"record-{ID}", f"{ID}%0A"])
def test_what_is_no_id_has_no_record(site: Site, name: str) -> None:
    site.swarm.records[ID] = record(site)
    assert (site.get(f"/v1/requests/{name}").status, site.get(f"/v1/requests/{name}").error["type"]) == (
        404,
        "not_found_error",
    )


def test_usage_says_whose_answers_were_not_confirmed(site: Site) -> None:
    site.swarm.script = flagged_answer
    reply = site.post("/v1/completions", {"model": "demo", "prompt": ["a", "b"]}).json
    UsageReply.model_validate(reply["usage"])
    swarm = reply["usage"]["kvasir"]
    ids = [request.request_id for request in site.swarm.requests]
    assert (swarm["flagged"], swarm["flagged_workers"]) == (True, ["liar"])
    assert swarm["unconfirmed"] == sorted({"liar", *(name[:4] for name in ids)})
    assert sorted(swarm["requests"]) == sorted(ids)


def test_strict_and_owner_travel(site: Site) -> None:
    for asked in (True, False, None):
        reply = site.post("/v1/completions", {"model": "demo", "prompt": "a", "strict": asked})
        assert reply.status == 200
        assert (site.swarm.requests[-1].strict, site.swarm.requests[-1].owner) == (bool(asked), key_id(site.key))
    refused = site.post("/v1/completions", {"model": "demo", "prompt": "a", "strict": "yes"})
    assert (refused.status, refused.error["param"]) == (400, "strict")
