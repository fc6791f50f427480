"""Who covers what, live, in Redis: heartbeats, promises, sweeps. One store for each model; web processes share it.

Called by `market.coverage.participation` (heartbeats), `market.coverage.leases` (promises) and
`market.coverage.demand`. Every change is one atomic script, so counts are exact at every moment: silence past its lease
takes a worker's replicas away at the next look, and a rebuild now and then would mend what a lost key had broken.
Methods block for one round trip and raise Redis's errors. Everything expires once nobody has touched it for KEEP_S.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from redis import Redis

from kvasir.experts import ExpertRange
from market.coverage import scripts
from market.coverage.codec import (
    Counts,
    Pledge,
    coverage_key,
    coverage_keys,
    pack_ranges,
    unpack_counts,
    unpack_pledges,
    unpack_ranges,
)
from market.coverage.model_facts import ModelFacts

Clock = Callable[[], int]  # Unix time in ms

KEEP_S = 3600
SWEEP_BATCH = 100
SWEEP_LOCK_MS = 5000
MOST_PLEDGES = 64  # of one worker at a time
_UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def unix_ms() -> int:
    """The clock of this machine. Web processes whose clocks differ see leases end that much earlier or later."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Beat:
    """What a heartbeat did: whether the worker's ranges are others than before, and how many workers live."""

    is_new: bool
    n_workers: int


@dataclass(frozen=True, slots=True)
class View:
    """All that a choice for one worker depends on, seen at one moment. The raw strings make a claim conditional."""

    counts: bytes
    pending: bytes
    targets: bytes  # empty before the first targets were set
    version: int
    held: bytes
    promised: bytes
    is_due: bool
    first_end_ms: int | None  # until the first pledge of any worker ends

    @property
    def held_ranges(self) -> tuple[ExpertRange, ...]:
        """What the worker's last heartbeat stated."""
        return unpack_ranges(self.held)

    @property
    def pledges(self) -> tuple[Pledge, ...]:
        """What the worker was promised and does not hold yet."""
        return unpack_pledges(self.promised)

    def window(self, item: ExpertRange, n_expert: int) -> tuple[bytes, bytes, bytes]:
        """The bytes of a range in counts, pending and targets."""
        cells = slice(2 * (item.layer * n_expert + item.start), 2 * (item.layer * n_expert + item.stop))
        return self.counts[cells], self.pending[cells], self.targets[cells]


class CoverageStore:
    """The coverage of one model."""

    def __init__(self, client: Redis, facts: ModelFacts, clock: Clock = unix_ms) -> None:
        self.client = client
        self.facts = facts
        self.clock = clock
        self._keys = coverage_keys(facts.fingerprint)
        texts = ("BEAT", "SWEEP", "LEAVE", "LOOK", "PEEK", "CLAIM", "REBUILD", "SET_TARGETS")
        self._scripts = {name: client.register_script(getattr(scripts, name)) for name in texts}
        self._turn = client.register_script(scripts.TURN)
        self._unlock = client.register_script(_UNLOCK)

    def beat(
        self,
        worker_id: str,
        ranges: Sequence[ExpertRange],
        lease_ms: int,
        facts: str = "{}",
        *,
        renew: Sequence[str] = (),
        renew_ms: int = 0,
        most_ms: int = 0,
    ) -> Beat:
        """A worker holds exactly these merged ranges for the next `lease_ms`. Pledges that they cover are fulfilled.

        Pledges whose lease ids are in `renew` last `renew_ms` from now, at most `most_ms` from their beginning.
        """
        until, renewed = self.clock() + lease_ms, bytes.fromhex("".join(renew))
        held = pack_ranges(ranges)
        is_new, n_workers = self._run("BEAT", worker_id, held, until, facts, renewed, renew_ms, most_ms)
        return Beat(bool(is_new), int(n_workers))

    def leave(self, worker_id: str) -> bool:
        """The worker is gone, and so is what it was promised. False when nothing was known of it."""
        return bool(self._run("LEAVE", worker_id))

    def n_workers(self) -> int:
        """How many workers live, those that ended and were not taken away yet included."""
        return int(self.client.zcard(coverage_key(self.facts.fingerprint, "beats")))

    def look(self, worker_id: str = "") -> View:
        """Everything at one moment, after a sweep if one was due."""
        view = self._look(worker_id)
        if view.is_due and self.sweep():
            view = self._look(worker_id)
        return view

    def version(self) -> int:
        """A number that changes whenever counts, promises, targets or the set of workers do; sweeps if that is due."""
        version, is_due = self._run("PEEK")
        if is_due and self.sweep():
            version, _ = self._run("PEEK")
        return int(version)

    def claim(self, worker_id: str, item: ExpertRange, view: View, lease_ms: int) -> str | None:
        """Promise a range, if everything about it is still as in `view`; returns the lease id, None when it is not.

        Raises TooManyPledgesError.
        """
        lease_id = secrets.token_bytes(8)
        place = (item.layer, item.start, item.stop)
        seen = (*view.window(item, self.facts.n_expert), view.held, view.promised)
        done = self._run("CLAIM", worker_id, lease_id, *place, self.clock() + lease_ms, MOST_PLEDGES, *seen)
        if done < 0:
            raise TooManyPledgesError(f"{worker_id} has {MOST_PLEDGES} leases that it has not turned into coverage")
        return lease_id.hex() if done else None

    def sweep(self) -> bool:
        """Take away what has ended, unless another process is at it. False when nothing was done here."""
        lock, token = coverage_key(self.facts.fingerprint, "sweep"), secrets.token_hex(8)
        if not self.client.set(lock, token, nx=True, px=SWEEP_LOCK_MS):
            return False
        try:
            while self._run("SWEEP", SWEEP_BATCH) >= SWEEP_BATCH:
                pass
        finally:
            self._unlock(keys=[lock], args=[token])
        return True

    def rebuild(self) -> int:
        """Count anew from the workers' ranges; returns how many of the two strings were wrong, which is 0."""
        return int(self._run("REBUILD"))

    def set_targets(self, packed: bytes) -> bool:
        """Set the targets; False when they were so already."""
        return bool(self._run("SET_TARGETS", packed))

    def turn(self, name: str, period_ms: int) -> int | None:
        """Whether something that one process does each `period_ms` is due: ms since the last time, or None."""
        key = coverage_key(self.facts.fingerprint, f"turn-{name}")
        elapsed = int(self._turn(keys=[key], args=[self.clock(), period_ms, KEEP_S * 1000]))
        return None if elapsed < 0 else elapsed

    def counts(self, packed: bytes) -> Counts:
        """A view's string as an array [n_layer, n_expert]."""
        return unpack_counts(packed, self.facts.n_layer, self.facts.n_expert)

    def _look(self, worker_id: str) -> View:
        counts, pending, targets, version, held, promised, is_due, wait_ms = self._run("LOOK", worker_id)
        first_end_ms = int(wait_ms) if wait_ms >= 0 else None
        return View(counts, pending, targets, int(version), held, promised, bool(is_due), first_end_ms)

    def _run(self, name: str, *arguments: bytes | str | int) -> Any:
        shape = (self.facts.n_layer, self.facts.n_expert, self.clock(), KEEP_S * 1000)
        return self._scripts[name](keys=self._keys, args=[*shape, *arguments])


class TooManyPledgesError(Exception):
    """A worker asks for more before it serves what it was promised."""
