"""A thread for the relay's few SQL queries, so that no frame waits for a database.

`relay.service` and the slice server own one each. Calls run one after another, each with a usable connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import close_old_connections

P = ParamSpec("P")
T = TypeVar("T")


class SqlThread:
    """Runs blocking functions for coroutines."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="relay-sql")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the function on the thread and return its result. Its exceptions are raised here."""

        def run() -> T:
            close_old_connections()
            return function(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._executor, run)

    def close(self) -> None:
        """Wait for the calls that have begun, and take no more."""
        self._executor.shutdown(wait=True)
