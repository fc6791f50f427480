"""The engine service with drafts: the same texts, tokens and traces counted once, rows of rejected drafts as work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from backbone.engine.dispatch.dispatcher import Served
from backbone.engine.drafts.drafter import DraftCounts
from backbone.engine.serving.jobs import Completed
from backbone.engine.serving.loaded_model import Dense, LoadedModel
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import Sequence
from backbone.engine.serving.service import ServiceLimits
from backbone.engine.serving.shares import ShareMeter, Shares
from backbone.process.served_model import max_drafts
from backbone.service_settings import ServiceSettings
from tests.unit.engine_service import SHAPE, running, single_run, spec, tiny_model

ECHO = (70, 71, 72, 73, 74, 75) * 3  # a prompt that suggests how it goes on


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("speculation"))


@pytest.fixture(scope="module")
def loaded(path: Path) -> Iterator[LoadedModel]:
    with LoadedModel.open(path, n_slot=4, n_threads=1) as loaded:
        yield loaded


@pytest.mark.parametrize("n_groups", [1, 2])
def test_jobs_get_the_same_answers_and_count_what_was_drafted(loaded: LoadedModel, n_groups: int) -> None:
    echo = {70 + n: 30.0 for n in range(6)}  # answers of few different tokens: guesses are right now and then
    jobs = [
        spec(f"j{n}", ECHO[n:], max_tokens=40, seed=n, logit_bias=echo, temperature=(0.0, 1.5)[n % 2]) for n in range(5)
    ]
    wanted = {job.job_id: single_run(loaded, job) for job in jobs}
    limits = ServiceLimits(n_groups=n_groups, max_rows=32, max_drafts=5)
    with running(loaded, limits=limits) as (service, listener):
        for job in jobs:
            service.submit(job)
        ends = [listener.last(job.job_id) for job in jobs]
        counters = service.state().counters
    assert {job.job_id: (listener.tokens(job.job_id), listener.text(job.job_id)) for job in jobs} == wanted
    total = DraftCounts()
    for job, end in zip(jobs, ends, strict=True):
        assert isinstance(end, Completed)
        total += end.drafts
        n_rows = len(job.prompt_ids) + 40 - 1 + end.drafts.drafted - end.drafts.accepted
        assert end.shares == Shares(fallback=n_rows * SHAPE.n_layer * SHAPE.n_used)
        assert (end.trace.first_token, len(end.trace.tokens)) == (0, 40)
        assert {len(token.pair_sources) for token in end.trace.tokens} == {SHAPE.n_layer * SHAPE.n_used}
    assert counters.drafts == total and 0 < total.accepted < total.drafted
    assert counters.n_tokens == 5 * 40


def test_a_meter_traces_the_rows_that_chose_tokens(loaded: LoadedModel) -> None:
    one, other, third = (Sequence(name, (1, 2), spec("x").params, loaded.tokenizer) for name in "abc")
    meter = ShareMeter()
    meter.begin((Chunk(other, 2), Chunk(one, 4, (7, 8, 9)), Chunk(third, 3, (5, 6))))
    meter.add(Served(0, "w", np.array([0, 1, 2, 3], np.int32), "worker"))  # rows 2 to 5 are one's, 6 to 8 the third's
    meter.add(Served(0, None, np.array([3, 4, 4, 5, 8], np.int32), "no replica"))
    ends = list(meter.end({one: 2, third: 3}))
    assert [end.sequence for end in ends] == [other, one, third]
    assert [end.shares for end in ends] == [Shares(workers=2), Shares(workers=2, fallback=4), Shares(fallback=1)]
    assert [end.drafts for end in ends] == [DraftCounts(), DraftCounts(3, 1), DraftCounts(2, 2)]
    assert [[len(token.pair_sources) for token in end.tokens] for end in ends] == [[], [1, 2], [0, 0, 1]]


def test_drafts_are_off_unless_asked_for_and_where_they_could_change_an_answer(
    path: Path, loaded: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServiceSettings(path, "m")
    assert max_drafts(settings, loaded) == 0
    assert max_drafts(replace(settings, speculate="auto", draft_tokens=3), loaded) == 3
    with LoadedModel.open(path, n_slot=1, dense=Dense.FLOAT) as other:
        assert max_drafts(replace(settings, speculate="auto"), other) == 0
    assert "KVASIR_SPECULATE stays off" in caplog.text
