"""Admission to slots: how many slots a budget of bytes holds, and the line of the jobs that wait for one.

The line keeps the order of arrival. A job with several choices takes one slot for each, as slots come free. Pure: no
clock, no engine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from backbone.engine.serving.jobs import Job
from backbone.engine.serving.sequence import Sequence
from kvasir.byte_sizes import format_size
from kvasir.errors import ConfigError


def slots_for_budget(slot_bytes: int, n_wanted: int, budget_bytes: int | None, recurrent_bytes: int = 0) -> int:
    """Return how many slots the budget holds, at most `n_wanted`. Raises ConfigError if it holds none.

    `recurrent_bytes` of a slot are its recurrent state, which a shorter context does not make smaller.
    """
    if budget_bytes is None:
        return n_wanted
    n_slot = min(n_wanted, budget_bytes // slot_bytes)
    if n_slot < 1:
        parts = f", {format_size(recurrent_bytes)} of it recurrent state" if recurrent_bytes else ""
        advice = "allow more bytes or a shorter context" if recurrent_bytes < budget_bytes else "allow more bytes"
        raise ConfigError(
            f"a slot of this model takes {format_size(slot_bytes)}{parts}, and the budget is "
            f"{format_size(budget_bytes)}: {advice}"
        )
    return n_slot


class WaitingLine:
    """The jobs with choices that have no slot yet, in order of arrival."""

    def __init__(self, max_jobs: int) -> None:
        """At most `max_jobs` may wait."""
        self.max_jobs = max_jobs
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_overfull(self) -> bool:
        """Whether the job that came last must be refused."""
        return len(self._jobs) > self.max_jobs

    def join(self, job: Job) -> None:
        """Append a job."""
        self._jobs.append(job)

    def leave(self, job: Job) -> None:
        """Remove a job; does nothing if the job is not in line."""
        if job in self._jobs:
            self._jobs.remove(job)

    def take(self) -> tuple[Job, Sequence] | None:
        """Take out the next job's next sequence, for which the caller has a slot; None if no job waits."""
        if not self._jobs:
            return None
        job = self._jobs[0]
        sequence = job.pending.popleft()
        if not job.pending:
            self._jobs.popleft()
        return job, sequence

    def moved(self) -> Iterator[tuple[Job, int]]:
        """Yield the jobs that wait for their first slot with a position that was not reported yet, and note it."""
        for position, job in enumerate(self._jobs, 1):
            if not job.has_begun and job.position != position:
                job.position = position
                yield job, position
