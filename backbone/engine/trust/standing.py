"""The standing of a worker: its trust state, and the pure rules by which recomputed answers change it.

`guard` applies them, and the market keeps the states between restarts. A timeout, a closed edge or a failure of our own
side is no sign of dishonesty, so none has a rule here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """The number of verified row-experts that makes a worker proven, and the share of its work that is checked then.

    An unproven worker's answers are all confirmed. A proven one's are sampled: `first_share` of them at first, less as
    more is verified, never less than `least_share`; `doubt_share` for the next `doubt_pairs` verified after an oddity.
    """

    proven_after: int = 4096  # verified row-experts; twice as many after each proven lie
    first_share: float = 1 / 16
    least_share: float = 1 / 64
    doubt_share: float = 1 / 4
    doubt_pairs: int = 1024


@dataclass(frozen=True, slots=True)
class TrustState:
    """The trust in one worker. `verified` counts row-experts found right since the last proven lie."""

    verified: int = 0
    failures: int = 0  # proven lies, ever
    doubt: int = 0  # row-experts still to be verified before an oddity no longer counts
    quarantined: bool = False
    evidence_id: str = ""  # of the last lie


def needed(state: TrustState, policy: TrustPolicy) -> int:
    """Return the verified row-experts that make this worker proven."""
    return int(policy.proven_after * 2 ** min(state.failures, 16))


def is_proven(state: TrustState, policy: TrustPolicy) -> bool:
    """Return whether answers may be used before they are checked."""
    return not state.quarantined and state.verified >= needed(state, policy)


def audit_share(state: TrustState, policy: TrustPolicy) -> float:
    """Return the share of a worker's answers that is checked: 1 while it is unproven."""
    if not is_proven(state, policy):
        return 1.0
    falling = policy.first_share * needed(state, policy) / max(state.verified, 1)
    share = max(falling, policy.least_share)
    return max(share, policy.doubt_share) if state.doubt else share


def after_good_check(state: TrustState, n_pairs: int) -> TrustState:
    """Return the state after `n_pairs` row-experts were found right. This does not end a quarantine."""
    return replace(state, verified=state.verified + n_pairs, doubt=max(state.doubt - n_pairs, 0))


def after_oddity(state: TrustState, policy: TrustPolicy) -> TrustState:
    """Return the state after an answer that is wrong but proves nothing, such as one of the wrong shape."""
    return replace(state, doubt=policy.doubt_pairs)


def after_lie(state: TrustState, evidence_id: str) -> TrustState:
    """Return the state after a proven wrong answer: quarantine, with no trust left."""
    return TrustState(verified=0, failures=state.failures + 1, quarantined=True, evidence_id=evidence_id)
