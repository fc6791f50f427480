"""Throughput in a real Redis: what backbones append is what is read, by steps, and old work leaves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis

from market.coverage.pulse import Pulse, fresh_pulses, publish_pulse, pulse_key, withdraw_pulse
from market.coverage.throughput import KEEP_S, N_STEPS, STEP_S, append_work, read_throughput, throughput_key
from tests.swarm.redis_fixture import RedisServer, running_redis

MODEL = "f" * 64


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[Redis]:
    with Redis.from_url(server.url) as client:
        client.flushall()
        yield client


def test_work_of_all_backbones_adds_up_by_steps(client: Redis) -> None:
    append_work(client, MODEL, {"tokens": 10, "workers": 40}, 1001.0)
    append_work(client, MODEL, {"tokens": 5, "fallback": 20, "hot": 0}, 1004.9)
    append_work(client, MODEL, {"tokens": 1}, 1005.0)
    append_work(client, MODEL, {"tokens": 0}, 1006.0)  # nothing to say
    seen = read_throughput(client, MODEL, 1012.0)
    assert seen.end_s == 1010
    assert all(len(rates) == N_STEPS for rates in seen.rates.values())
    assert {name: rates[-2:] for name, rates in seen.rates.items()} == {
        "tokens": (15 / STEP_S, 1 / STEP_S),
        "workers": (40 / STEP_S, 0.0),
        "hot": (0.0, 0.0),
        "fallback": (20 / STEP_S, 0.0),
    }
    assert sum(map(sum, seen.rates.values())) * STEP_S == 76
    assert client.xlen(throughput_key(MODEL)) == 3


def test_old_work_leaves_and_everything_expires(client: Redis) -> None:
    append_work(client, MODEL, {"tokens": 1}, 1000.0)
    append_work(client, MODEL, {"tokens": 1}, 1000.0 + KEEP_S + STEP_S + 1)
    assert client.xlen(throughput_key(MODEL)) == 1
    assert 0 < client.ttl(throughput_key(MODEL)) <= 2 * KEEP_S


def test_a_client_that_decodes_reads_the_same(client: Redis, server: RedisServer) -> None:
    append_work(client, MODEL, {"workers": 7}, 1001.0)
    with Redis.from_url(server.url, decode_responses=True) as decoding:
        assert read_throughput(decoding, MODEL, 1006.0) == read_throughput(client, MODEL, 1006.0)


def test_a_backbone_that_leaves_is_shown_no_more(client: Redis) -> None:
    pulse = Pulse(at_s=1000.0, running=1)
    publish_pulse(client, MODEL, "b1", pulse)
    assert fresh_pulses(client.hvals(pulse_key(MODEL)), 1001.0) == [pulse]
    assert 0 < client.ttl(pulse_key(MODEL)) <= 60
    withdraw_pulse(client, MODEL, "b1")
    assert client.hvals(pulse_key(MODEL)) == []
