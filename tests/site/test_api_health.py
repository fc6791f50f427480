"""Health, readiness, metrics and the OpenAPI page."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import override_settings
from prometheus_client.parser import text_string_to_metric_families
from redis.exceptions import ConnectionError as RedisConnectionError

from backbone.api.keys.store import KeyScope, issue
from backbone.stream.events import Event, Failed, Started
from tests.site.api_client import Site

COMPLETION = {"model": "demo", "prompt": "Once"}


def samples(site: Site) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    with override_settings(KVASIR_METRICS_OPEN=True):
        reply = site.get("/metrics")
    assert reply.status == 200 and reply.headers["Content-Type"].startswith("text/plain")
    families = text_string_to_metric_families(reply.body.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_health_asks_nobody(site: Site) -> None:
    site.swarm.failure = RedisConnectionError("away")
    reply = site.get("/healthz", Authorization="")
    assert reply.status == 200 and reply.json["status"] == "ok"


def test_ready_means_redis_and_a_backbone(site: Site) -> None:
    assert site.get("/readyz", Authorization="").json == {"status": "ready"}
    site.swarm.alive = []
    reply = site.get("/readyz")
    assert (reply.status, reply.json["reason"], reply.headers["Retry-After"]) == (503, "no backbone", "2")
    site.swarm.failure = RedisConnectionError("away")
    assert (site.get("/readyz").status, site.get("/readyz").json["reason"]) == (503, "redis")


def test_health_takes_only_get(site: Site) -> None:
    assert site.post("/healthz", {}).status == 405


def test_metrics_need_a_key_of_their_own(site: Site) -> None:
    assert site.get("/metrics", Authorization="").status == 401
    assert site.get("/metrics").status == 403
    key = issue([KeyScope.METRICS], "prometheus").text
    assert site.get("/metrics", Authorization=f"Bearer {key}").status == 200


def test_the_web_counts_its_requests(site: Site) -> None:
    def grown(name: str, **labels: str) -> float:
        key = (name, tuple(sorted(labels.items())))
        return after.get(key, 0.0) - before.get(key, 0.0)

    before = samples(site)
    site.post("/v1/completions", COMPLETION | {"n": 2})
    site.post("/v1/completions", COMPLETION | {"stream": True})
    site.post("/v1/completions", COMPLETION | {"nonsense": 1})
    site.post("/v1/chat/completions", {})
    after = samples(site)
    assert grown("kvasir_api_requests_total", endpoint="completions", status="200") == 2
    assert grown("kvasir_api_requests_total", endpoint="completions", status="400") == 1
    assert grown("kvasir_api_requests_total", endpoint="chat", status="400") == 1
    assert grown("kvasir_api_tokens_total", kind="completion") == 6
    assert grown("kvasir_api_tokens_total", kind="prompt") == 6
    assert grown("kvasir_api_row_experts_total", source="workers") == 150
    assert grown("kvasir_api_request_seconds_count", endpoint="completions") == 2
    assert grown("kvasir_api_first_token_seconds_count", endpoint="completions") == 2
    assert grown("kvasir_api_abandoned_total") == 0
    assert after[("kvasir_api_open_generations", ())] == before.get(("kvasir_api_open_generations", ()), 0.0)


def test_what_fails_is_abandoned_and_not_open(site: Site) -> None:
    before = samples(site)
    begun: list[Event] = [Started(1, "demo", "fp", "b1")]
    site.swarm.script = lambda request: [*begun, Failed(502, "backbone_lost", "gone")]
    assert site.post("/v1/completions", COMPLETION).status == 502
    after = samples(site)
    name = ("kvasir_api_abandoned_total", ())
    assert after[name] - before.get(name, 0.0) == 1
    assert after[("kvasir_api_open_generations", ())] == 0


def test_paths_cannot_make_new_series(site: Site) -> None:
    for number in range(3):
        site.get(f"/v1/made-up-{number}")
    endpoints = {dict(labels).get("endpoint") for name, labels in samples(site) if name == "kvasir_api_requests_total"}
    assert endpoints <= {"completions", "chat", "models", "playground", "requests", "other"}


def test_backbones_report_through_redis(site: Site) -> None:
    site.swarm.counters = {"b1": {"tokens": 5, "running": 2}, "b2": {"tokens": 7, "row_experts_hot": 3}}
    found = samples(site)
    assert found[("kvasir_backbone_tokens_total", (("backbone", "b1"),))] == 5
    assert found[("kvasir_backbone_tokens_total", (("backbone", "b2"),))] == 7
    assert found[("kvasir_backbone_running", (("backbone", "b1"),))] == 2
    assert found[("kvasir_backbone_row_experts_total", (("backbone", "b2"), ("source", "hot")))] == 3
    assert found[("kvasir_backbones", ())] == 2
    assert found[("kvasir_queue_length", ())] == 0


def test_metrics_without_redis_are_the_process_s_own(site: Site) -> None:
    site.swarm.failure = RedisConnectionError("away")
    assert samples(site)[("kvasir_backbones", ())] == 0


def test_the_openapi_page_needs_no_internet(site: Site) -> None:
    page = site.get("/v1/docs", Authorization="")
    assert page.status == 200
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    text = page.body.decode()
    assert "http://" not in text and "https://" not in text and not re.search(r"<script(?![^>]*\bsrc=)", text)
    links = re.findall(r'(?:src|href)="([^"]+)"', text)
    assert len(links) == 4
    for link in links:
        file = site.get(link, Authorization="")
        assert file.status == 200 and file.body
        assert site.get(link, **{"If-None-Match": file.headers["ETag"]}).status == 304


def test_the_schema_says_what_is_there(site: Site) -> None:
    schema: Any = site.get("/v1/openapi.json", Authorization="").json
    assert set(schema["paths"]) == {
        "/v1/models",
        "/v1/models/{model_id}",
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/requests/{request_id}",
        "/v1/requests/{request_id}/trace",
        "/v1/playground/key",
    }
    operation = schema["paths"]["/v1/completions"]["post"]
    assert operation["security"]
    assert set(operation["responses"]) >= {"200", "400", "401", "429", "503"}
    fields = schema["components"]["schemas"]["CompletionBody"]["properties"]
    assert {"prompt", "temperature", "min_p", "logit_bias", "stream_options"} <= set(fields)
    assert schema["components"]["securitySchemes"]


@pytest.mark.parametrize("path", ["/v1/docs", "/v1/docs/start.js", "/metrics", "/readyz"])
def test_only_get_here(site: Site, path: str) -> None:
    assert site.post(path, {}).status == 405
