"""The ledger's vocabulary, pure: kinds of events, the postings that each emits, and when an event is sound.

`market.ledger.rewards` makes events, `market.ledger.posting` writes them. Microcredits are whole numbers; no float is
ever money.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kvasir.errors import KvasirError

TREASURY = "treasury"  # what the site has given out, as a negative number
WITHHELD = "withheld"  # what was not paid after lies
MOST_MICROCREDITS = 1 << 62


class LedgerError(KvasirError):
    """An event that the ledger does not take: the message says why. Sending it again does not help."""


class EntryType(StrEnum):
    """What an event is about. Each docstring names the postings."""

    EARNED = "earned"
    """Verified work of one batch. Treasury: minus the sum. Each owner: plus what its nodes earned."""

    WITHHELD = "withheld"
    """Work of one batch that a proven lie left unvouched. Treasury: minus the sum. Withheld: plus the sum."""

    REVERSED = "reversed"
    """An operator's correction. Every account of the reversed event: its amount with the other sign."""


@dataclass(frozen=True, slots=True)
class Event:
    """Postings by account that belong together. `event_id` is made from what happened, so a replay has the same."""

    event_id: str
    entry_type: EntryType
    postings: Mapping[str, int]  # account's name: microcredits
    note: str = ""


def owner_account(account_id: str) -> str:
    """The ledger account of somebody who owns nodes."""
    return f"owner:{account_id}"


def node_account(node_id: str) -> str:
    """The ledger account of a node that nobody owns: its token was issued by hand."""
    return f"node:{node_id}"


def make_event(event_id: str, entry_type: EntryType, postings: Iterable[tuple[str, int]], note: str = "") -> Event:
    """Sum postings by account and leave out what is zero. Raises LedgerError as `check` does."""
    sums: dict[str, int] = {}
    for account, microcredits in postings:
        sums[account] = sums.get(account, 0) + microcredits
    event = Event(event_id, entry_type, {name: sums[name] for name in sorted(sums) if sums[name]}, note)
    check(event)
    return event


def check(event: Event) -> None:
    """Raises LedgerError unless all amounts are whole, none is zero or too large, and they sum to zero."""
    for account, microcredits in event.postings.items():
        if type(microcredits) is not int or not 0 < abs(microcredits) < MOST_MICROCREDITS:
            raise LedgerError(f"event {event.event_id}: {microcredits!r} for {account} is no amount of microcredits")
    total = sum(event.postings.values())
    if total:
        raise LedgerError(f"event {event.event_id}: its postings sum to {total}, not to zero")


def reversal(event: Event, reason: str) -> Event:
    """The event that undoes another. Its id names that one, so nothing is undone twice."""
    if event.entry_type is EntryType.REVERSED:
        raise LedgerError(f"event {event.event_id} is a reversal itself: record what is right instead")
    undone = {account: -microcredits for account, microcredits in event.postings.items()}
    return Event(f"reversed:{event.event_id}", EntryType.REVERSED, undone, reason)
