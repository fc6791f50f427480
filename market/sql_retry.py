"""Transactions that are tried again when another writer was in the way. Called by whatever writes the ledger.

SQLite lets one writer in at a time and PostgreSQL ends one of two that wait for each other; both say OperationalError.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connection, transaction

T = TypeVar("T")

TRIES = 8
FIRST_WAIT_S = 0.05
MOST_NAMES = 500  # in one query: SQLite takes a bounded number of parameters


def in_transaction(work: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
    """Do all of `work` or nothing of it. Raises OperationalError when even the last try found no way.

    Inside another transaction it is tried once: only the outer one can be begun again.
    """
    tries = 1 if connection.in_atomic_block else TRIES
    for number in range(tries):
        try:
            with transaction.atomic():
                return work()
        except OperationalError:
            if number == tries - 1:
                raise
        sleep(FIRST_WAIT_S * 2**number * (0.5 + random.random()))  # noqa: S311  # so that two do not meet again
    raise AssertionError("unreachable")  # pragma: no cover
