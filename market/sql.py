"""Transactions that are retried after a conflict with another writer, and queries for many names.

Used by all modules that write the ledger or trust. SQLite allows one writer at a time, and PostgreSQL aborts one of two
transactions in a deadlock; both raise OperationalError.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from django.db import OperationalError, connection, transaction

T = TypeVar("T")

TRIES = 8
FIRST_WAIT_S = 0.05
MOST_NAMES = 500  # in one query: SQLite limits the number of parameters


def in_transaction(work: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Run `work` in a transaction, up to TRIES times. Raises the OperationalError of the last try.

    Inside another transaction it runs once: only the outer transaction can be retried.
    """
    tries = 1 if connection.in_atomic_block else TRIES
    for number in range(tries):
        try:
            with transaction.atomic():
                return work()
        except OperationalError:
            if number == tries - 1:
                raise
        sleep(FIRST_WAIT_S * 2**number * (0.5 + random.random()))  # noqa: S311  # so that writers do not meet again
    raise AssertionError("unreachable")  # pragma: no cover


def name_batches(names: Iterable[str]) -> Iterator[list[str]]:
    """Yield distinct names in ascending order, at most MOST_NAMES at a time."""
    wanted = sorted(set(names))
    return (wanted[first : first + MOST_NAMES] for first in range(0, len(wanted), MOST_NAMES))
