"""What workers may do wrong, for tests and for the benchmark of audits: answers that pass as answers but are not right.

Each is made with the state that it needs and given to `swarm.lying`. They are called by one thread of their worker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from kvasir.experts import FloatRows

Answer = Callable[[FloatRows], FloatRows]


class EveryNth:
    """Wrong numbers of the right shape in one of `n` answers, the first lie being answer number `first`."""

    def __init__(self, n: int, first: int = 1) -> None:
        self._n = n
        self._first = first
        self.n_answers = 0
        self.n_lies = 0

    def __call__(self, outputs: FloatRows) -> FloatRows:
        self.n_answers += 1
        if self.n_answers < self._first or (self.n_answers - self._first) % self._n:
            return outputs
        self.n_lies += 1
        return wrong_numbers(outputs)


class Replaying:
    """Answers with what it answered before to a question of the same shape, after some honest answers."""

    def __init__(self, n_honest: int) -> None:
        self._n_honest = n_honest
        self._old: dict[tuple[int, ...], FloatRows] = {}
        self.n_answers = 0

    def __call__(self, outputs: FloatRows) -> FloatRows:
        self.n_answers += 1
        old = self._old.setdefault(outputs.shape, outputs.copy())
        return old if self.n_answers > self._n_honest else outputs


class NotANumber:
    """One value that is no number, after some honest answers."""

    def __init__(self, n_honest: int) -> None:
        self._n_honest = n_honest
        self.n_answers = 0

    def __call__(self, outputs: FloatRows) -> FloatRows:
        self.n_answers += 1
        if self.n_answers <= self._n_honest:
            return outputs
        spoilt = outputs.copy()
        spoilt[-1, 3] = np.nan
        return spoilt


class Silent:
    """No answer at all after some honest ones, until `released` is set; or each of them `late_s` seconds late."""

    def __init__(self, n_honest: int, late_s: float | None = None) -> None:
        self._n_honest = n_honest
        self._late_s = late_s
        self.released = threading.Event()
        self.n_answers = 0

    def __call__(self, outputs: FloatRows) -> FloatRows:
        self.n_answers += 1
        if self.n_answers > self._n_honest:
            self.released.wait(self._late_s)
        return outputs


def wrong_numbers(outputs: FloatRows) -> FloatRows:
    """One value of each pair is a little off: enough to change a text, too little to look odd."""
    wrong = outputs.copy()
    wrong[:, 5] = wrong[:, 5] * np.float32(1.5) + np.float32(0.25)
    return wrong


class Sometimes:
    """Wrong numbers of the right shape in a share of all answers, at random, after some honest ones."""

    def __init__(self, share: float, seed: int, n_honest: int = 0) -> None:
        self._share = share
        self._n_honest = n_honest
        self._rng = np.random.default_rng(seed)
        self.n_answers = 0
        self.n_lies = 0

    def __call__(self, outputs: FloatRows) -> FloatRows:
        self.n_answers += 1
        if self.n_answers <= self._n_honest or self._rng.random() >= self._share:
            return outputs
        self.n_lies += 1
        return wrong_numbers(outputs)
