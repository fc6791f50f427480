"""Where tokens were computed: collected by row, kept for the last tokens, counted by source, stored and read back."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from backbone.engine.dispatch.dispatcher import Served
from backbone.engine.serving import token_sources
from backbone.engine.serving.jobs import Completed, FailureKind, JobFailure
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.service import ServiceLimits
from backbone.engine.serving.token_sources import (
    LastTokens,
    Source,
    SourceTable,
    TokenSources,
    TokenTrace,
    count_sources,
    sources_of_rows,
)
from backbone.process.event_mapping import OPERATORS, request_trace, shown_worker
from backbone.stream.events import EventError
from backbone.stream.request_trace import FALLBACK, WORKER, RequestTrace, TraceSource, trace_from_text
from tests.unit.engine_service import SHAPE, Valve, running, single_run, spec, tiny_model


def served(layer: int, worker_id: str | None, *rows: int) -> Served:
    return Served(layer, worker_id, np.array(rows, np.int32), "worker" if worker_id else "no replica")


def trace_of(*steps: list[Served]) -> TokenTrace:
    """One token a step, at row 0."""
    table, last = SourceTable(), LastTokens(64)
    for step in steps:
        (token,) = sources_of_rows(table, step, np.array([0]))
        last.add(token)
    return last.trace()


def counts(token: TokenSources) -> dict[Source, int]:
    counted = count_sources(TokenTrace(0, (token,)))
    return dict(zip(counted.sources, counted.counts[0].tolist(), strict=True))


def test_each_row_gets_its_own_pairs() -> None:
    step = [served(0, "b", 0, 2, 2), served(0, None, 0, 1, 1), served(1, "b", 1, 1, 2, 2), served(1, "a", 0, 0)]
    first, second, third = sources_of_rows(SourceTable(), step, np.array([0, 1, 2]))
    assert counts(first) == {Source(0, "b"): 1, Source(0, None): 1, Source(1, "a"): 2}
    assert counts(second) == {Source(0, None): 2, Source(1, "b"): 2}
    assert counts(third) == {Source(0, "b"): 2, Source(1, "b"): 2}


def test_rows_that_are_not_asked_about_are_left_out() -> None:
    step = [served(0, "a", *range(300)), served(0, None, *range(300))]
    (last,) = sources_of_rows(SourceTable(), step, np.array([299]))
    assert len(last.pair_sources) == 2 and counts(last) == {Source(0, "a"): 1, Source(0, None): 1}


def test_a_step_without_experts_has_no_sources() -> None:
    (token,) = sources_of_rows(SourceTable(), [], np.array([0]))
    assert counts(token) == {}


def test_only_the_last_tokens_are_kept() -> None:
    table, last = SourceTable(), LastTokens(3)
    for n in range(5):
        last.add(sources_of_rows(table, [served(n, "a", 0)], np.array([0]))[0])
    trace = last.trace()
    assert trace.first_token == 2 and len(trace.tokens) == 3
    assert [source.layer for source in count_sources(trace).sources] == [2, 3, 4]


def test_a_trace_goes_on_in_another_table(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = SourceTable(), SourceTable()
    other.number(Source(9, "b"))
    last = LastTokens(3)
    for n, table in enumerate((one, one, other, other, one)):
        last.add(sources_of_rows(table, [served(n, "a", 0, 0)], np.array([0]))[0])
    trace = last.trace()
    assert trace.first_token == 2 and [counts(token) for token in trace.tokens] == [
        {Source(n, "a"): 2} for n in (2, 3, 4)
    ]
    assert {id(token.table) for token in trace.tokens} == {id(one)}
    monkeypatch.setattr(token_sources, "MOST_SOURCES", 3)
    full = SourceTable()
    last.add(sources_of_rows(full, [served(5, "a", 0)], np.array([0]))[0])
    assert last.trace().first_token == 5  # there is no room for the three before it


def test_a_table_says_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_sources, "MOST_SOURCES", 3)
    table = SourceTable()
    assert [table.number(Source(0, name)) for name in ("a", "b", "a")] == [0, 1, 0]
    assert table.has_room(1) and not table.has_room(2)


def test_workers_come_first_and_the_operators_are_one() -> None:
    step = [served(4, "10.0.0.1:9", 0), served(2, None, 0, 0), served(4, "10.0.0.2:9", 0, 0), served(2, "n2", 0)]
    trace = request_trace(trace_of(step, [served(4, "n1", 0)]), shown_worker)
    assert trace.layers == (2, 4)
    names = [(source.kind, source.worker) for source in trace.sources]
    assert names == [(WORKER, "n1"), (WORKER, "n2"), (WORKER, OPERATORS), (FALLBACK, None)]
    assert list(trace.tokens()) == [[(0, 1, 0, 2), (0, 0, 3, 0)], [(0, 0, 0, 0), (1, 0, 0, 0)]]


def test_a_trace_survives_its_text() -> None:
    trace = RequestTrace(5, (0, 1), (TraceSource(WORKER, "n1"), TraceSource(FALLBACK)), bytes(range(16)))
    assert trace_from_text(trace.to_text()) == trace
    assert len(list(trace.tokens())) == 2


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"first_token":0,"layers":[0],"sources":[["worker","a"]],"counts":"AAAA"}']
)
def test_what_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(EventError, match="a request's trace is invalid"):
        trace_from_text(text)


def test_counts_that_do_not_fit_the_tokens_are_refused() -> None:
    sources = (TraceSource(WORKER, "n1"), TraceSource(FALLBACK))
    with pytest.raises(EventError, match="counts have 6 bytes; each token has 8"):
        trace_from_text(RequestTrace(0, (0, 1), sources, bytes(6)).to_text())
    with pytest.raises(EventError, match="each token has 0"):
        trace_from_text(RequestTrace(0, (), sources, b"").to_text())


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    with LoadedModel.open(tiny_model(tmp_path_factory.mktemp("traced")), n_slot=3, n_threads=1) as loaded:
        yield loaded


def test_a_job_ends_with_the_trace_of_its_last_tokens(loaded: LoadedModel) -> None:
    jobs = [spec("short", max_tokens=3), spec("long", (61,) * 9, max_tokens=12, n=2)]
    wanted = [single_run(loaded, job)[0] for job in jobs]
    with running(loaded, limits=ServiceLimits(max_rows=4, n_traced_tokens=5)) as (service, listener):
        for job in jobs:
            service.submit(job)
        ends = [listener.last(job.job_id) for job in jobs]
    assert [listener.tokens(job.job_id) for job in jobs] == wanted
    for end, first in zip(ends, (0, 7), strict=True):
        assert isinstance(end, Completed)
        trace = request_trace(end.trace, shown_worker)
        assert (trace.first_token, trace.layers) == (first, tuple(range(SHAPE.n_layer)))
        assert trace.sources == (TraceSource(FALLBACK),)
        n_tokens = min(5, 12 if first else 3)
        assert list(trace.tokens()) == [[(SHAPE.n_used,)] * SHAPE.n_layer] * n_tokens


def test_a_job_that_is_cancelled_has_the_trace_of_what_it_had(loaded: LoadedModel) -> None:
    valve = Valve()
    with running(loaded, valve=valve) as (service, listener):
        service.submit(spec("j", max_tokens=50))
        valve.pass_calls(2 * SHAPE.n_layer)
        listener.wait(lambda: len(listener.tokens("j")) == 2)
        service.cancel("j", JobFailure(FailureKind.CANCELLED, "enough"))
        last = listener.last("j")
    assert (last.trace.first_token, len(last.trace.tokens)) == (0, 2)


def test_tracing_can_be_off(loaded: LoadedModel) -> None:
    with running(loaded, limits=ServiceLimits(n_traced_tokens=0)) as (service, listener):
        service.submit(spec("j"))
        last = listener.last("j")
    assert isinstance(last, Completed) and last.trace.tokens == ()
    assert last.shares.total == 7 * SHAPE.n_layer * SHAPE.n_used
