"""Measure what share of expert calls caches of a given size would serve: the production plan, LRU, and the best fixed
set.

All go through the same recorded routing in the order of its tokens, one row a call. Only the second half counts: LRU is
warm by then and the plan has seen calls, while the best fixed set is chosen in hindsight from that half itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from backbone.engine.dispatch.call_samples import CallSamples
from backbone.engine.dispatch.hot_cache import PLAN_EVERY
from backbone.engine.dispatch.hot_plan import Costs, HotExperts, plan_hot
from benchmarks.routing.real_routing import Routed

Routing = Mapping[int, Routed]


@dataclass(frozen=True, slots=True)
class Served:
    """Of the second half: pairs that were in the cache, calls of which all were, and experts that were fetched."""

    share: float
    trips_saved: float
    loads_per_token: float


def planned(routing: Routing, n_expert: int, n_cached: int, *, trip_s: float, pair_s: float) -> Served:
    """The production rules: sampled calls, a plan each PLAN_EVERY calls, what is hot until then."""
    n_layer, n_tokens = _shape(routing)
    samples = CallSamples(n_layer, n_expert)
    costs = Costs(np.full((n_layer, n_expert), trip_s), np.full((n_layer, n_expert), pair_s), own_s=0.0)
    plan: HotExperts = (frozenset(),) * n_layer
    count, n_calls = _Count(n_tokens), 0
    for token in range(n_tokens):
        for layer, routed in routing.items():
            experts = routed[token]
            count.add(token, sum(expert in plan[layer] for expert in experts.tolist()), len(experts))
            samples.add(layer, experts[None])
            n_calls += 1
            if n_calls % PLAN_EVERY == 0:
                calls = [samples.calls(number) for number in range(n_layer)]
                new = plan_hot(calls, costs, [1] * n_layer, n_cached, plan)
                count.load(token, sum(len(after - before) for after, before in zip(new, plan, strict=True)))
                plan = new
    return count.served()


def least_recently_used(routing: Routing, n_cached: int) -> Served:
    """Every call brings its experts in, and those that were called longest ago leave."""
    cache: OrderedDict[tuple[int, int], None] = OrderedDict()
    _, n_tokens = _shape(routing)
    count = _Count(n_tokens)
    for token in range(n_tokens):
        for layer, routed in routing.items():
            keys = [(layer, expert) for expert in routed[token].tolist()]
            hits = sum(key in cache for key in keys)
            count.add(token, hits, len(keys))
            count.load(token, len(keys) - hits)
            for key in keys:
                cache[key] = None
                cache.move_to_end(key)
            while len(cache) > n_cached:
                cache.popitem(last=False)
    return count.served()


def best_fixed(routing: Routing, n_expert: int, n_cached: int) -> Served:
    """The experts that the second half calls most."""
    n_layer, n_tokens = _shape(routing)
    traffic = np.zeros((n_layer, n_expert), np.int64)
    for layer, routed in routing.items():
        traffic[layer] = np.bincount(routed[n_tokens // 2 :].reshape(-1), minlength=n_expert)
    kept = np.zeros(traffic.size, np.bool_)
    kept[np.argsort(-traffic.reshape(-1), kind="stable")[:n_cached]] = True
    is_kept, count = kept.reshape(traffic.shape), _Count(n_tokens)
    for token in range(n_tokens // 2, n_tokens):
        for layer, routed in routing.items():
            count.add(token, int(is_kept[layer, routed[token]].sum()), routed.shape[1])
    return count.served()


class _Count:
    def __init__(self, n_tokens: int) -> None:
        self._from, self._n_counted = n_tokens // 2, n_tokens - n_tokens // 2
        self._n_pairs = self._n_hits = self._n_calls = self._n_whole = self._n_loads = 0

    def add(self, token: int, n_hits: int, n_pairs: int) -> None:
        if token >= self._from:
            self._n_pairs += n_pairs
            self._n_hits += n_hits
            self._n_calls += 1
            self._n_whole += n_hits == n_pairs

    def load(self, token: int, n_experts: int) -> None:
        self._n_loads += n_experts if token >= self._from else 0

    def served(self) -> Served:
        whole = self._n_whole / self._n_calls
        return Served(self._n_hits / self._n_pairs, whole, self._n_loads / self._n_counted)


def _shape(routing: Routing) -> tuple[int, int]:
    return max(routing) + 1, len(next(iter(routing.values())))
