"""The ledger's events, pure: their types, the postings of each type, and when an event is sound.

`market.ledger.rewards` makes events, `market.ledger.posting` writes them. Microcredits are whole numbers; no float is
ever money.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvasir.errors import KvasirError

TREASURY = "treasury"  # the source of all rewards: its balance is minus the sum of all others
WITHHELD = "withheld"  # work that was not paid after lies
MOST_MICROCREDITS = 1 << 62


class LedgerError(KvasirError):
    """An event that the ledger refuses, with the reason. A retry does not help."""


class EntryType(StrEnum):
    """The type of an event. Each docstring names the postings."""

    EARNED = "earned"
    """Verified work of one batch. Treasury: minus the sum. Each owner: plus what its nodes earned."""

    WITHHELD = "withheld"
    """Work of one batch that is not paid after a proven lie. Treasury: minus the sum. Withheld: plus the sum."""

    REVERSED = "reversed"
    """An operator's correction. Every account of the reversed event: minus its amount."""


@dataclass(frozen=True, slots=True)
class Event:
    """Postings by account that belong together. `event_id` is derived from the cause, so a replay has the same id."""

    event_id: str
    entry_type: EntryType
    postings: Mapping[str, int]  # account's name: microcredits
    note: str = ""


def owner_account(account_id: str) -> str:
    """Return the ledger account of an owner of nodes."""
    return f"owner:{account_id}"


def node_account(node_id: str) -> str:
    """Return the ledger account of a node without an owner: its token was issued by an operator."""
    return f"node:{node_id}"


def make_event(event_id: str, entry_type: EntryType, postings: Iterable[tuple[str, int]], note: str = "") -> Event:
    """Return an event with the non-zero sums of postings by account. Raises LedgerError as `check` does."""
    sums: dict[str, int] = {}
    for account, microcredits in postings:
        sums[account] = sums.get(account, 0) + microcredits
    event = Event(event_id, entry_type, {name: sums[name] for name in sorted(sums) if sums[name]}, note)
    check(event)
    return event


def check(event: Event) -> None:
    """Raise LedgerError unless all amounts are whole numbers within bounds, not zero, and sum to zero."""
    for account, microcredits in event.postings.items():
        if type(microcredits) is not int or not 0 < abs(microcredits) < MOST_MICROCREDITS:
            raise LedgerError(f"event {event.event_id}: {microcredits!r} for {account} is not a valid amount")
    total = sum(event.postings.values())
    if total:
        raise LedgerError(f"event {event.event_id}: its postings sum to {total}, not to zero")


def reversal(event: Event, reason: str) -> Event:
    """Return the event that reverses another. Its id has the other's, so nothing is reversed twice.

    Raises LedgerError for a reversal.
    """
    if event.entry_type is EntryType.REVERSED:
        raise LedgerError(f"event {event.event_id} is a reversal itself: post a new event instead")
    undone = {account: -microcredits for account, microcredits in event.postings.items()}
    return Event(f"reversed:{event.event_id}", EntryType.REVERSED, undone, reason)
