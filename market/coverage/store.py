"""The live coverage of one model in Redis: heartbeats, leases, sweeps. All web processes share it.

Called by `market.coverage.participation` (heartbeats), `market.coverage.leases` and `market.coverage.demand`. Every
change is one atomic script, so counts are always exact. The next look after a worker's heartbeat expires takes its
replicas away; a rebuild from time to time repairs counts after the loss of a key. Methods block for one round trip and
raise Redis's errors. Everything expires KEEP_S after the last access.
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
    PendingLease,
    coverage_key,
    coverage_keys,
    pack_ranges,
    unpack_leases,
    unpack_ranges,
)
from market.coverage.model_facts import ModelFacts

Clock = Callable[[], int]  # Unix time in ms

KEEP_S = 3600
SWEEP_BATCH = 100
SWEEP_LOCK_MS = 5000
MOST_LEASES = 64  # of one worker at a time
_UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


def unix_ms() -> int:
    """Return this machine's time. The clocks of web processes should agree: leases end by the clock of the reader."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Beat:
    """The effect of a heartbeat: whether the worker's ranges have changed, and how many workers are live."""

    is_new: bool
    n_workers: int


@dataclass(frozen=True, slots=True)
class View:
    """The state that the choice for one worker depends on, at one moment. A claim compares the raw strings."""

    counts: bytes
    pending: bytes
    targets: bytes  # empty before the first targets were set
    version: int
    held: bytes
    leased: bytes
    is_due: bool
    first_end_ms: int | None  # until the first lease of any worker ends

    @property
    def held_ranges(self) -> tuple[ExpertRange, ...]:
        """The ranges of the worker's last heartbeat."""
        return unpack_ranges(self.held)

    @property
    def leases(self) -> tuple[PendingLease, ...]:
        """The worker's leases for ranges that it does not hold yet."""
        return unpack_leases(self.leased)

    def window(self, item: ExpertRange, n_expert: int) -> tuple[bytes, bytes, bytes]:
        """Return the bytes of a range in counts, pending and targets."""
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
        """Record that a worker holds exactly these merged ranges for the next `lease_ms`; leases of them are fulfilled.

        Other leases whose ids are in `renew` last `renew_ms` from now, at most `most_ms` from their beginning.
        """
        until, renewed = self.clock() + lease_ms, bytes.fromhex("".join(renew))
        held = pack_ranges(ranges)
        is_new, n_workers = self._run("BEAT", worker_id, held, until, facts, renewed, renew_ms, most_ms)
        return Beat(bool(is_new), int(n_workers))

    def leave(self, worker_id: str) -> bool:
        """Remove a worker and its leases. Returns False when there was nothing of it."""
        return bool(self._run("LEAVE", worker_id))

    def n_workers(self) -> int:
        """Return the number of workers, expired ones that no sweep has removed yet included."""
        return int(self.client.zcard(coverage_key(self.facts.fingerprint, "beats")))

    def look(self, worker_id: str = "") -> View:
        """Return the state at one moment, after a sweep if one was due."""
        view = self._look(worker_id)
        if view.is_due and self.sweep():
            view = self._look(worker_id)
        return view

    def version(self) -> int:
        """Return a number that changes with counts, leases, targets and the set of workers; sweeps if that is due."""
        version, is_due = self._run("PEEK")
        if is_due and self.sweep():
            version, _ = self._run("PEEK")
        return int(version)

    def claim(self, worker_id: str, item: ExpertRange, view: View, lease_ms: int) -> str | None:
        """Lease a range to a worker if the range and the worker are still as in `view`.

        Returns the lease's id, or None when something has changed. Raises TooManyLeasesError.
        """
        lease_id = secrets.token_bytes(8)
        place = (item.layer, item.start, item.stop)
        seen = (*view.window(item, self.facts.n_expert), view.held, view.leased)
        done = self._run("CLAIM", worker_id, lease_id, *place, self.clock() + lease_ms, MOST_LEASES, *seen)
        if done < 0:
            raise TooManyLeasesError(f"{worker_id} has {MOST_LEASES} leases that it has not turned into coverage")
        return lease_id.hex() if done else None

    def sweep(self) -> bool:
        """Remove expired workers and leases. Returns False when another process is sweeping: nothing was done."""
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
        """Recount from the workers' ranges. Returns how many of counts and pending were wrong; normally 0."""
        return int(self._run("REBUILD"))

    def set_targets(self, packed: bytes) -> bool:
        """Set the targets. Returns False when they were the same already."""
        return bool(self._run("SET_TARGETS", packed))

    def turn(self, name: str, period_ms: int) -> int | None:
        """Take the turn for work that one process does each `period_ms`.

        Returns the milliseconds since the last turn (0 for the first one), or None when the work is not due.
        """
        key = coverage_key(self.facts.fingerprint, f"turn-{name}")
        elapsed = int(self._turn(keys=[key], args=[self.clock(), period_ms, KEEP_S * 1000]))
        return None if elapsed < 0 else elapsed

    def _look(self, worker_id: str) -> View:
        counts, pending, targets, version, held, leased, is_due, wait_ms = self._run("LOOK", worker_id)
        first_end_ms = int(wait_ms) if wait_ms >= 0 else None
        return View(counts, pending, targets, int(version), held, leased, bool(is_due), first_end_ms)

    def _run(self, name: str, *arguments: bytes | str | int) -> Any:
        shape = (self.facts.n_layer, self.facts.n_expert, self.clock(), KEEP_S * 1000)
        return self._scripts[name](keys=self._keys, args=[*shape, *arguments])


class TooManyLeasesError(Exception):
    """A worker volunteers again with MOST_LEASES leases that it has not turned into coverage."""
