"""A backbone's pulse: the codec, several backbones joined, how long requests take, who computes how much."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from backbone.engine.dispatch.dispatcher import Served
from backbone.engine.sampling.choice import Sampled
from backbone.engine.serving.jobs import Began, Broken, Completed, FailureKind, JobFailure, NewToken
from backbone.engine.serving.shares import Shares
from backbone.process.pulse_keeper import LATENCIES_KEPT_S, MOST_REQUESTS, LatencyBook, WorkMeter
from kvasir.errors import WireError
from market.coverage.pulse import FRESH_S, Pulse, WorkerPulse, fresh_pulses, joined_workers, pack_pulse, unpack_pulse

PULSE = Pulse(
    at_s=1000.0,
    running=2,
    slots=4,
    tokens=7,
    row_experts={"workers": 5, "hot": 0, "fallback": 1},
    latencies={"queue_s": (0.1, 0.2)},
    workers={"ant": WorkerPulse(1.5, 20.0, True, True)},
)
TOKEN = NewToken(0, Sampled(1, None, ()), "a")
DONE = Completed(1, 1, Shares())


class Now:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


def served(worker_id: str | None, n_pairs: int) -> Served:
    return Served(0, worker_id, np.zeros(n_pairs, np.int32), "worker")


def test_a_pulse_comes_back_as_it_was() -> None:
    assert unpack_pulse(pack_pulse(PULSE)) == PULSE
    assert unpack_pulse(pack_pulse(PULSE).encode()) == PULSE


@pytest.mark.parametrize(
    "data", ["", "[]", "{}", '{"workers": {}, "latencies": {}}', '{"workers": 1, "latencies": {}}']
)
def test_what_is_no_pulse_is_an_error(data: str) -> None:
    with pytest.raises(WireError, match="not a pulse of this version"):
        unpack_pulse(data)


def test_old_and_malformed_pulses_are_left_out() -> None:
    old = replace(PULSE, at_s=1000.0 - FRESH_S - 0.1)
    assert fresh_pulses([pack_pulse(old), b"{", pack_pulse(PULSE)], 1000.0) == [PULSE]


def test_a_node_over_several_backbones() -> None:
    other = replace(PULSE, workers={"ant": WorkerPulse(None, 1.0, False, False), "bee": WorkerPulse(9.0, 3.0, True)})
    joined = joined_workers([PULSE, other])
    assert joined == {"ant": WorkerPulse(1.5, 21.0, True, False), "bee": WorkerPulse(9.0, 3.0, True)}


def test_times_count_from_the_request() -> None:
    now = Now()
    book = LatencyBook(now)
    book.open("r", 998.0)
    book.note([("r", Began(3)), ("stranger", TOKEN)])
    now.s = 1001.5
    book.note([("r", TOKEN)])
    now.s = 1004.0
    book.note([("r", TOKEN), ("r", DONE)])
    assert book.recent() == {"queue_s": (2.0,), "first_token_s": (3.5,), "request_s": (6.0,)}
    now.s += LATENCIES_KEPT_S + 0.1
    assert book.recent() == {"queue_s": (), "first_token_s": (), "request_s": ()}


def test_broken_requests_are_in_no_figure_and_clocks_may_differ() -> None:
    now = Now()
    book = LatencyBook(now)
    book.open("r", 998.0)
    book.note([("r", Broken(JobFailure(FailureKind.CANCELLED, ""))), ("r", DONE)])
    assert book.recent()["request_s"] == ()
    book.open("s", 1007.0)  # the web process is ahead
    book.note([("s", Began(1)), ("s", DONE)])
    assert book.recent() == {"queue_s": (0.0,), "first_token_s": (0.0,), "request_s": (0.0,)}


def test_only_the_last_requests_are_kept() -> None:
    book = LatencyBook(Now())
    for number in range(MOST_REQUESTS + 5):
        book.open("r", 1000.0 - number)
        book.note([("r", DONE)])
    assert book.recent()["request_s"] == tuple(float(number) for number in range(5, MOST_REQUESTS + 5))


def test_rates_follow_the_work_and_fade() -> None:
    meter = WorkMeter()
    meter.add(served("ant", 30))
    meter.add(served(None, 99))
    assert meter.rates(10.0) == {"ant": pytest.approx(1.5)}  # half of 3 rows/s after one half-life
    meter.add(served("ant", 30))
    assert meter.rates(10.0)["ant"] == pytest.approx(2.25)
    assert meter.rates(1e4) == {}
