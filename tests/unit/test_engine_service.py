"""The engine as a service: jobs join and leave between steps, each gets exactly what it would get alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from backbone.engine.dispatch.counters import Served
from backbone.engine.sampling import choice as sampling
from backbone.engine.serving import service_core
from backbone.engine.serving.jobs import Began, Completed, ContextOverflow, FailureKind, JobFailure, NewToken, Waiting
from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.serving.scheduler import Chunk
from backbone.engine.serving.sequence import FinishReason, Sequence
from backbone.engine.serving.service import ServiceClosed, ServiceLimits
from backbone.engine.serving.shares import ShareMeter, Shares
from backbone.engine.serving.waiting_line import slots_for_budget
from kvasir.errors import ConfigError, RequestError
from tests.unit.engine_service import SHAPE, Valve, running, single_run, spec, tiny_model

N_SLOT = 3


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    with LoadedModel.open(tiny_model(tmp_path_factory.mktemp("service")), n_slot=N_SLOT, n_threads=1) as loaded:
        yield loaded


def test_a_job_gets_its_events_in_order_and_its_own_text(loaded: LoadedModel) -> None:
    job = spec("a", logprobs=2)
    tokens, text = single_run(loaded, job)
    with running(loaded) as (service, listener):
        service.submit(job)
        last = listener.last("a")
    events = listener.of("a")
    assert isinstance(events[0], Began) and events[0].n_prompt_tokens == 3
    assert listener.tokens("a") == tokens and listener.text("a") == text
    assert [event.finish_reason for event in listener.ended("a")] == [FinishReason.LENGTH]
    assert isinstance(last, Completed) and last.n_completion_tokens == 5
    # three prompt rows and four of five output rows, in two layers, four experts each
    assert last.shares.total == last.shares.fallback == 7 * 2 * 4
    sampled = [event.sampled for event in events if isinstance(event, NewToken)]
    assert all(len(one.top_logprobs) == 2 and one.logprob is not None for one in sampled)


def test_jobs_join_and_leave_between_steps(loaded: LoadedModel) -> None:
    jobs = [spec("long", max_tokens=30), spec("late", (61, 3), max_tokens=4, seed=1)]
    wanted = [single_run(loaded, job)[0] for job in jobs]
    valve = Valve()
    with running(loaded, valve=valve) as (service, listener):
        service.submit(jobs[0])
        valve.pass_calls(2 * 3)
        listener.wait(lambda: len(listener.tokens("long")) == 3)
        service.submit(jobs[1])
        valve.open()
        listener.last("long")
    order = [job_id for batch in listener.batches for job_id, event in batch if isinstance(event, Completed)]
    assert order == ["late", "long"]
    assert [listener.tokens(job.job_id) for job in jobs] == wanted


@pytest.mark.parametrize("n_groups", [1, 2, 4])
def test_micro_batches_change_no_text(loaded: LoadedModel, n_groups: int) -> None:
    jobs = [spec(f"j{n}", tuple(range(n + 1, 3 * n + 4)), seed=n, max_tokens=6) for n in range(6)]
    wanted = [single_run(loaded, job) for job in jobs]
    with running(loaded, limits=ServiceLimits(n_groups=n_groups, max_rows=4)) as (service, listener):
        for job in jobs:
            service.submit(job)
        for job in jobs:
            assert isinstance(listener.last(job.job_id), Completed)
    assert [(listener.tokens(job.job_id), listener.text(job.job_id)) for job in jobs] == wanted


def test_sixty_four_at_once_equal_their_single_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tiny_model(tmp_path_factory.mktemp("many"))
    jobs = [spec(f"j{n}", (n + 1, 2 * n + 1, 7), seed=n, max_tokens=3 + n % 3) for n in range(64)]
    with LoadedModel.open(path, n_slot=64, n_threads=2) as loaded:
        wanted = [single_run(loaded, job)[0] for job in jobs]
        with running(loaded, limits=ServiceLimits(n_groups=2)) as (service, listener):
            for job in jobs:
                service.submit(job)
            for job in jobs:
                assert isinstance(listener.last(job.job_id), Completed)
    assert [listener.tokens(job.job_id) for job in jobs] == wanted


def test_choices_differ_and_the_first_is_the_single_run(loaded: LoadedModel) -> None:
    job = spec("n", n=5, max_tokens=8)
    with running(loaded) as (service, listener):
        service.submit(job)
        last = listener.last("n")
    assert isinstance(last, Completed) and last.n_completion_tokens == 40
    assert sorted(end.choice for end in listener.ended("n")) == list(range(5))
    assert listener.tokens("n") == single_run(loaded, job)[0]
    assert len({tuple(listener.tokens("n", choice)) for choice in range(5)}) == 5


def test_cancelling_frees_the_slot_for_the_one_who_waits(loaded: LoadedModel) -> None:
    valve = Valve()
    with running(loaded, valve=valve) as (service, listener):
        for n in range(N_SLOT):
            service.submit(spec(f"r{n}", max_tokens=100))
        valve.pass_calls(2)
        listener.wait(lambda: len(listener.tokens("r0")) == 1)
        service.submit(spec("next"))
        listener.wait(lambda: listener.of("next") == [Waiting(1)])
        n_tokens = len(listener.tokens("r1"))
        service.cancel("r1")  # within a step: its slot is free when the step ends
        assert listener.failure("r1") is FailureKind.CANCELLED
        assert len(listener.of("next")) == 1
        valve.pass_calls(2)
        listener.wait(lambda: isinstance(listener.of("next")[-1], Began))
        assert len(listener.tokens("r1")) == n_tokens  # the step in flight brought it nothing
        valve.open()
        assert isinstance(listener.last("next"), Completed)
        service.cancel("next")
        service.cancel("never seen")
    assert listener.tokens("next") == single_run(loaded, spec("next"))[0]


def test_a_waiting_job_can_be_cancelled(loaded: LoadedModel) -> None:
    valve = Valve()
    with running(loaded, valve=valve) as (service, listener):
        service.submit(spec("wide", n=N_SLOT))
        service.submit(spec("first"))
        service.submit(spec("second"))
        listener.wait(lambda: listener.of("second") == [Waiting(2)])
        service.cancel("first")
        assert listener.failure("first") is FailureKind.CANCELLED
        listener.wait(lambda: listener.of("second") == [Waiting(2), Waiting(1)])


def test_the_line_is_bounded(loaded: LoadedModel) -> None:
    valve = Valve()
    with running(loaded, valve=valve, limits=ServiceLimits(max_waiting=1)) as (service, listener):
        service.submit(spec("wide", n=N_SLOT))
        service.submit(spec("waits"))
        service.submit(spec("refused"))
        assert listener.failure("refused") is FailureKind.QUEUE_FULL
        assert len(listener.of("refused")) == 1
        valve.open()
        assert isinstance(listener.last("waits"), Completed)


def test_deadlines_follow_the_given_clock(loaded: LoadedModel) -> None:
    now, valve = [100.0], Valve()
    with running(loaded, valve=valve, clock=lambda: now[0]) as (service, listener):
        service.submit(spec("short", max_tokens=100, deadline_s=5.0))
        service.submit(spec("patient", max_tokens=3, deadline_s=50.0))
        service.submit(spec("wide", n=2, deadline_s=5.5))  # its second choice waits
        valve.pass_calls(2)
        listener.wait(lambda: listener.tokens("short"))
        now[0] = 105.0
        valve.open()
        assert listener.failure("short") is FailureKind.DEADLINE
        assert isinstance(listener.last("patient"), Completed)
        assert isinstance(listener.last("wide"), Completed)
    assert len(listener.tokens("short")) <= 2


def test_a_waiting_job_keeps_its_deadline(loaded: LoadedModel) -> None:
    now, valve = [0.0], Valve()
    with running(loaded, valve=valve, clock=lambda: now[0]) as (service, listener):
        service.submit(spec("wide", n=N_SLOT, max_tokens=50))
        service.submit(spec("waits", deadline_s=1.0))
        listener.wait(lambda: listener.of("waits") == [Waiting(1)])
        now[0] = 1.0
        valve.pass_calls(2)
        assert listener.failure("waits") is FailureKind.DEADLINE
        assert not listener.ended("wide")


def test_a_failing_step_fails_only_the_jobs_in_it(loaded: LoadedModel) -> None:
    valve = Valve()
    with running(loaded, valve=valve, limits=ServiceLimits(n_groups=2)) as (service, listener):
        service.submit(spec("hit", max_tokens=20))
        service.submit(spec("other group", max_tokens=20))
        for _ in range(2):
            assert valve.arrived.acquire(timeout=60)
        valve.failing = ZeroDivisionError("a bug in the step")
        valve.pass_calls(1)
        listener.wait(lambda: len(listener.of("hit")) + len(listener.of("other group")) == 3)
        service.submit(spec("after"))
        valve.open()
        broken, whole = ("hit", "other group") if len(listener.of("hit")) == 2 else ("other group", "hit")
        assert listener.failure(broken) is FailureKind.STEP_FAILED
        assert isinstance(listener.last("after"), Completed)
        assert isinstance(listener.last(whole), Completed)
        assert service.is_alive
    assert listener.tokens(whole) == single_run(loaded, spec("hit", max_tokens=20))[0]


def test_a_token_that_cannot_be_chosen_fails_its_job_alone(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = sampling.sample

    def breaking(logits: object, history: object, params: object, draw: object) -> object:
        if getattr(params, "seed", None) == 666:
            raise RequestError("the logits are not finite")
        return chosen(logits, history, params, draw)  # type: ignore[arg-type]

    monkeypatch.setattr("backbone.engine.serving.sequence.sample", breaking)
    with running(loaded) as (service, listener):
        service.submit(spec("good"))
        service.submit(spec("bad", seed=666, n=2))
        assert listener.failure("bad") is FailureKind.STEP_FAILED
        assert isinstance(listener.last("good"), Completed)
    monkeypatch.undo()
    assert listener.tokens("good") == single_run(loaded, spec("good"))[0]


def test_what_can_never_fit_is_refused_with_both_numbers(loaded: LoadedModel) -> None:
    with running(loaded) as (service, listener):
        with pytest.raises(ContextOverflow, match=rf"prompt has 200 tokens .* holds {SHAPE.n_ctx}"):
            service.submit(spec("long", (1,) * 200))
        with pytest.raises(ContextOverflow, match=rf"needs 129 tokens \(3 .* 126\) .* holds {SHAPE.n_ctx}"):
            service.submit(spec("much", max_tokens=126))
        with pytest.raises(RequestError, match=r"token id 288; .* 0 to 287"):
            service.submit(spec("id", (1, 288)))
        with pytest.raises(RequestError, match="token id -1"):
            service.submit(spec("id", (1, -1)))
        with pytest.raises(RequestError, match="logit_bias names token 300"):
            service.submit(spec("bias", logit_bias={300: 1.0}))
        with pytest.raises(RequestError, match="empty"):
            service.submit(spec("empty", ()))
    assert listener.batches == []


def test_stopping_lets_the_running_finish_and_takes_nobody_in(loaded: LoadedModel) -> None:
    with running(loaded) as (service, listener):
        service.submit(spec("runs", max_tokens=20))
        service.stop(60.0)
        assert isinstance(listener.last("runs"), Completed)
        with pytest.raises(ServiceClosed):
            service.submit(spec("late"))
        service.cancel("late")


def test_stopping_ends_what_is_not_done_by_the_deadline(loaded: LoadedModel) -> None:
    valve = Valve()
    with running(loaded, valve=valve) as (service, listener):
        service.submit(spec("runs", n=N_SLOT))
        service.submit(spec("waits"))
        assert valve.arrived.acquire(timeout=60)
        service.stop(0.0)
        assert listener.failure("runs") is listener.failure("waits") is FailureKind.STOPPING


def test_when_the_loop_dies_every_job_hears_of_it(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ArithmeticError("a bug in the service")

    monkeypatch.setattr(service_core.ServiceCore, "_after_step", broken)
    with running(loaded) as (service, listener):
        service.submit(spec("a", n=N_SLOT))
        assert listener.failure("a") is FailureKind.ENGINE_LOST
        service.stop(1.0)
        assert not service.is_alive
        with pytest.raises(ServiceClosed):
            service.submit(spec("b"))


def test_all_jobs_can_be_ended_at_once(loaded: LoadedModel) -> None:
    lost = JobFailure(FailureKind.STORE_LOST, "nobody hears the tokens")
    valve = Valve()
    with running(loaded, valve=valve) as (service, listener):
        service.submit(spec("a", n=N_SLOT))
        service.submit(spec("b"))
        listener.wait(lambda: listener.of("b"))
        service.cancel_all(lost)
        assert listener.failure("a") is listener.failure("b") is FailureKind.STORE_LOST
        valve.open()
        service.submit(spec("c"))
        assert isinstance(listener.last("c"), Completed)
        state = service.state()
    assert (state.n_running, state.n_waiting, state.n_slot, state.n_groups) == (0, 0, N_SLOT, 1)
    assert (state.counters.n_completed, state.counters.n_failed, state.counters.n_tokens) == (1, 2, 5)


def test_a_stalled_step_shows(loaded: LoadedModel) -> None:
    now, valve = [0.0], Valve()
    with running(loaded, valve=valve, clock=lambda: now[0]) as (service, _):
        assert service.state().stalled_s == 0
        service.submit(spec("a"))
        assert valve.arrived.acquire(timeout=60)
        now[0] = 33.0
        assert service.state().stalled_s == 33


def test_slots_follow_the_budget() -> None:
    assert slots_for_budget(1000, 8, None) == 8
    assert slots_for_budget(1000, 8, 3999) == 3
    assert slots_for_budget(1000, 8, 10**9) == 8
    with pytest.raises(ConfigError, match="1000 B, and the budget is 999 B: allow more bytes or a shorter context"):
        slots_for_budget(1000, 8, 999)
    with pytest.raises(ConfigError, match=r"1000 B, 999 B of it recurrent state, and the budget is 999 B: .* bytes$"):
        slots_for_budget(1000, 8, 999, recurrent_bytes=999)


def test_row_experts_are_counted_by_whose_rows_they_were(loaded: LoadedModel) -> None:
    one, other = (
        Sequence(name, ids, spec("x").params, loaded.tokenizer) for name, ids in (("a", (1, 2, 3)), ("b", (4,)))
    )
    meter = ShareMeter()
    meter.begin((Chunk(one, 3), Chunk(other, 1)))
    meter.add(Served(0, "worker", np.array([0, 0, 2, 3], np.int32), "worker"))
    meter.add(Served(0, None, np.array([1, 1, 2, 3], np.int32), "no replica"))
    meter.add(Served(1, "worker", np.array([3, 3], np.int32), "worker"))
    found = [(sequence, shares) for sequence, shares, _, _ in meter.end({})]
    assert found == [(one, Shares(workers=3, fallback=3)), (other, Shares(workers=3, fallback=1))]
    assert list(meter.end({})) == []
    total = Shares(1, 2, 3) + Shares(10, 20, 30)
    assert (total, total.total) == (Shares(11, 22, 33), 66)


@pytest.mark.parametrize("n_groups", [1, 3])
def test_each_job_counts_its_own_rows_whatever_runs_beside_it(loaded: LoadedModel, n_groups: int) -> None:
    jobs = [spec(f"j{n}", (1,) * (n + 1), max_tokens=2 + n, n=1 + n % 2) for n in range(5)]
    with running(loaded, limits=ServiceLimits(n_groups=n_groups, max_rows=3)) as (service, listener):
        for job in jobs:
            service.submit(job)
        for job in jobs:
            last = listener.last(job.job_id)
            assert isinstance(last, Completed)
            n_rows = sum(len(job.prompt_ids) + end.n_tokens - 1 for end in listener.ended(job.job_id))
            assert last.shares == Shares(fallback=n_rows * SHAPE.n_layer * SHAPE.n_used)
        assert service.state().counters.shares.total == sum(
            event.shares.total for batch in listener.batches for _, event in batch if isinstance(event, Completed)
        )
