"""Traces over the API: what one says, and who may read it."""

from __future__ import annotations

import struct

from backbone.api.keys.store import KeyScope, issue
from backbone.api.schemas import TraceReply
from backbone.stream.events import Failed
from backbone.stream.request_trace import FALLBACK, WORKER, RequestTrace, TraceSource
from tests.site.api_client import Site
from tests.site.test_api_records import ID, record

COUNTS = struct.pack("<8H", 2, 0, 1, 1, 0, 2, 300, 0)
TRACE = RequestTrace(10, (0, 5), (TraceSource(WORKER, "ann"), TraceSource(FALLBACK)), COUNTS)


def test_it_works(site: Site) -> None:
    site.swarm.records[ID], site.swarm.traces[ID] = record(site), TRACE
    for name in (ID, f"chatcmpl-{ID}"):
        reply = site.get(f"/v1/requests/{name}/trace")
        assert reply.status == 200
        TraceReply.model_validate(reply.json, strict=False)  # JSON has no tuples
        assert reply.json == {
            "id": ID,
            "object": "request.trace",
            "first_token": 10,
            "layers": [0, 5],
            "sources": [{"kind": "worker", "worker": "ann"}, {"kind": "fallback", "worker": None}],
            "tokens": [[[[0, 2]], [[0, 1], [1, 1]]], [[[1, 2]], [[0, 300]]]],
        }


def test_a_cancelled_request_has_one_too(site: Site) -> None:
    site.swarm.records[ID] = record(site, end=Failed(499, "cancelled", "enough"))
    site.swarm.traces[ID] = TRACE
    assert site.get(f"/v1/requests/{ID}/trace").status == 200


def test_nobody_else_may_read_it(site: Site) -> None:
    site.swarm.records[ID], site.swarm.traces[ID] = record(site), TRACE
    other = issue([KeyScope.GENERATE], "other").text
    hidden = site.get(f"/v1/requests/{ID}/trace", Authorization=f"Bearer {other}")
    nothing = site.get(f"/v1/requests/{'f' * 32}/trace")
    assert (hidden.status, hidden.error) == (404, nothing.error)
    assert hidden.error["code"] == "request_not_found"
    assert site.get(f"/v1/requests/{ID}/trace", Authorization="").status == 401


def test_a_trace_that_is_gone_is_said_to_be(site: Site) -> None:
    site.swarm.records[ID] = record(site)
    gone = site.get(f"/v1/requests/{ID}/trace")
    assert (gone.status, gone.error["code"]) == (404, "trace_not_found")
