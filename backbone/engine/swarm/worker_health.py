"""When a worker that failed may be asked again, and when it is dialled again: pure rules.

`edge_pool` keeps one `Health` a worker. A failure leaves the worker out for a time that doubles with each further
failure. The worker then returns to a small share of the work; each good answer raises the share and halves the time
that the next failure costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FIRST_PENALTY_S = 1.0
LONGEST_PENALTY_S = 60.0
FIRST_REDIAL_S = 0.25
LONGEST_REDIAL_S = 30.0
FIRST_SHARE = 1 / 8
SHARE_GROWTH = 1.25  # with each good answer: ten of them give all of the work back


@dataclass(frozen=True, slots=True)
class Health:
    """`left_out_until` is a reading of the caller's clock in seconds; `penalty_s` is what the next failure costs.

    `share` is the part of the layer calls in which the worker is given work, once it is live.
    """

    left_out_until: float = 0.0
    penalty_s: float = FIRST_PENALTY_S
    last_reason: str = ""
    share: float = 1.0

    def is_live(self, now: float) -> bool:
        """Return whether the worker may be given work."""
        return now >= self.left_out_until

    def after_failure(self, now: float, reason: str) -> Health:
        """Return the health after a failure; failures reported while the worker is left out count once."""
        if not self.is_live(now):
            return replace(self, last_reason=reason)
        return Health(now + self.penalty_s, min(2 * self.penalty_s, LONGEST_PENALTY_S), reason, FIRST_SHARE)

    def after_success(self) -> Health:
        """Return the health after a good answer."""
        share = min(self.share * SHARE_GROWTH, 1.0)
        return replace(self, penalty_s=max(self.penalty_s / 2, FIRST_PENALTY_S), share=share)


def redial_delay_s(n_failures: int, jitter: float) -> float:
    """Return the seconds before the next dial after `n_failures` in a row.

    The delay doubles from FIRST_REDIAL_S to LONGEST_REDIAL_S. `jitter` in [0, 1) takes up to half of it away, so that
    many backbones do not redial at once.
    """
    longest = min(FIRST_REDIAL_S * 2.0 ** min(n_failures, 16), LONGEST_REDIAL_S)
    return longest * (1 - jitter / 2)
