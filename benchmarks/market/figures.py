"""The figures of `bench_market`: ours and the references in turns, then HTTP, then the virtual swarm."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from redis import Redis

from benchmarks.machine import describe_commit, describe_machine
from benchmarks.market.heal import heal
from benchmarks.market.reference import DictMarket, SqliteMarket
from benchmarks.market.sandbox import model_file, post, requests_per_s, site_process
from benchmarks.shape.load_model_file import QUICK, ModelShape
from kvasir.experts import ExpertRange
from market.coverage.demand import Demand
from market.coverage.leases import Lease, Volunteer, take_lease
from market.coverage.model_facts import ModelFacts
from market.coverage.reading import snapshot_of
from market.coverage.store import CoverageStore
from market.service import redis_client
from market.settings import MarketSettings, TargetBounds
from tests.swarm.redis_fixture import running_redis

N_EXPERTS = 64
FEWEST = 100  # high enough that every volunteer of the measurement is served
N_AT_ONCE = 200


@dataclass(frozen=True, slots=True)
class Size:
    """The extent of a run."""

    shape: ModelShape
    n_workers: int
    n_calls: int
    n_http: int
    heal_target: int


FULL = Size(ModelShape(), n_workers=10_000, n_calls=400, n_http=2000, heal_target=52)
SMOKE = Size(QUICK, n_workers=200, n_calls=20, n_http=60, heal_target=4)


def measure(folder: Path, size: Size) -> dict[str, object]:
    """All figures."""
    model, facts = model_file(folder, size.shape)
    with running_redis(folder) as server:
        client = redis_client(server.url)
        bare = _Bare(client, facts, folder, size)
        figures: dict[str, object] = bare.interleaved()
        figures["double_leases"] = bare.double_leases()
        http = _through_http(folder, model, facts, server.url, size)
        for key, value in http.items():
            figures[key] = {"http": value, "bare": figures.pop(f"{key}_bare")}
        market = MarketSettings(targets=TargetBounds(size.heal_target, size.heal_target))
        healed = heal(client, facts, market, N_EXPERTS)
        figures["double_leases"] = bare.n_double + healed.beyond_target
        figures["heal_s"] = {"in_all": healed.heal_s, "lease": market.lease_s, "download": healed.download_s}
        figures["replica_imbalance"] = healed.imbalance
        figures |= {"machine": describe_machine(), "commit": describe_commit()}
        client.close()
    return figures


class _Bare:
    """The market without HTTP, and the two references."""

    def __init__(self, client: Redis, facts: ModelFacts, folder: Path, size: Size) -> None:

        self.size = size
        self.bounds = TargetBounds(FEWEST, FEWEST)
        self.store = CoverageStore(client, facts)
        self.demand = Demand(self.store, self.bounds)
        self.plain = DictMarket(facts, FEWEST)
        self.sqlite = SqliteMarket(folder / "reference.sqlite3", facts, FEWEST)
        self.n_double = 0
        rng = np.random.default_rng(0)
        layers = rng.choice(facts.moe_layers, size.n_workers)
        starts = rng.integers(0, facts.n_expert - N_EXPERTS + 1, size.n_workers)
        self.workers = {
            f"w{number}": ExpertRange(int(layer), int(start), int(start) + N_EXPERTS)
            for number, (layer, start) in enumerate(zip(layers, starts, strict=True))
        }
        for worker, item in self.workers.items():
            self.store.beat(worker, [item], 3_600_000)
            self.sqlite.beat(worker, item)
        self.plain.held = dict(self.workers)

    def interleaved(self) -> dict[str, object]:
        """Medians; ours and the references in turns. A join between two demands is what `demand_changed_ms` has."""
        numbers = itertools.count()
        names = itertools.cycle(self.workers.items())
        times: dict[str, list[float]] = {}

        def timed(name: str, work: Callable[[], object]) -> None:
            begin = time.perf_counter()
            work()
            times.setdefault(name, []).append(time.perf_counter() - begin)

        self.demand.answer()
        for turn in range(self.size.n_calls):
            timed("demand", self.demand.answer)
            worker, item = next(names)
            timed("beat", lambda worker=worker, item=item: self.store.beat(worker, [item], 3_600_000))  # type: ignore[misc]
            timed("volunteer", lambda: self._volunteer(f"v{next(numbers)}"))
            timed("changed", self.demand.answer)
            if turn % 20 == 0:
                timed("dict demand", self.plain.demand)
                timed("sqlite demand", self.sqlite.demand)
                timed("sqlite volunteer", lambda: self.sqlite.volunteer(f"s{next(numbers)}", N_EXPERTS))
                timed("sqlite beat", lambda worker=worker, item=item: self.sqlite.beat(worker, item))  # type: ignore[misc]
        median = {name: statistics.median(values) for name, values in times.items()}
        return {
            "demand_ms": round(median["demand"] * 1e3, 3),
            "demand_changed_ms": round(median["changed"] * 1e3, 3),
            "heartbeats_per_s_bare": round(1 / median["beat"]),
            "volunteers_per_s_bare": round(1 / median["volunteer"]),
            "reference": {
                "demand_ms_dict": round(median["dict demand"] * 1e3, 3),
                "demand_ms_sqlite": round(median["sqlite demand"] * 1e3, 3),
                "heartbeats_per_s_sqlite": round(1 / median["sqlite beat"]),
                "volunteers_per_s_sqlite": round(1 / median["sqlite volunteer"]),
                "double_leases_dict": self._plain_double_leases(),
            },
        }

    def double_leases(self) -> int:
        """Experts promised beyond their target when N_AT_ONCE volunteers come at once for the last gaps."""

        fewest = int(snapshot_of(self.store, self.bounds).replicas.max())
        tight = TargetBounds(fewest, fewest)
        with ThreadPoolExecutor(N_AT_ONCE) as pool:
            ask = lambda n: take_lease(self.store, Volunteer(f"t{n}", max_experts=N_EXPERTS), tight, 3600.0)  # noqa: E731
            list(pool.map(ask, range(N_AT_ONCE)))
        seen = snapshot_of(self.store, tight)
        before = np.maximum(seen.targets, seen.replicas)
        self.n_double = int((seen.replicas + seen.pending > before).sum())
        return self.n_double

    def _volunteer(self, name: str) -> None:

        answer = take_lease(self.store, Volunteer(name, max_experts=N_EXPERTS), self.bounds, 60.0)
        if not isinstance(answer, Lease):
            raise TypeError(f"a volunteer was sent away: {answer}")

    def _plain_double_leases(self) -> int:
        """Experts beyond their target when N_AT_ONCE ask the dictionary at the same moment for one gap."""
        gap = self.plain.counts()
        self.plain.targets = gap.copy()
        layer = self.plain.facts.moe_layers[0]
        self.plain.targets[layer, :N_EXPERTS] += 1
        offers = [self.plain.volunteer(N_EXPERTS) for _ in range(N_AT_ONCE)]
        for item in offers:
            if item is not None:
                gap[item.layer, item.start : item.stop] += 1
        return int((gap > self.plain.targets).sum())


def _through_http(folder: Path, model: Path, facts: ModelFacts, redis_url: str, size: Size) -> dict[str, float]:

    shape: dict[str, object] = {"model": facts.fingerprint, "n_layer": facts.n_layer, "n_expert": facts.n_expert}
    with site_process(folder, model, redis_url, min(size.n_http, 1000)) as site:
        nodes = list(itertools.islice(itertools.cycle(site.nodes), size.n_http))
        beats = [
            post(
                "/api/expert-coverage",
                node,
                shape
                | {"worker_id": node.node_id, "segments": [[facts.moe_layers[0], 0, N_EXPERTS]], "url": "relay:1"},
            )
            for node in nodes
        ]
        volunteers = [post("/api/expert-volunteer", node, {"max_experts": N_EXPERTS * 64}) for node in nodes]
        requests_per_s(site.port, beats[: len(site.nodes)])  # the first one of a node is another kind of heartbeat
        beating = requests_per_s(site.port, beats)
        return {
            "heartbeats_per_s": round(beating),
            "volunteers_per_s": round(requests_per_s(site.port, volunteers[: len(site.nodes)])),
        }
