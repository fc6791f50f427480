"""The command `kvasir-worker`, also `python -m kvasir.worker`.

It parses the options, opens the slice or starts an agent, serves until SIGTERM or SIGINT, answers the requests in
flight and exits with code 0. An error that a worker cannot recover from is one sentence on standard error and exit
code 2.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import platform
import signal
import sys
from collections.abc import Sequence

from kvasir.errors import KvasirError
from kvasir.worker.agent.config import AgentConfig
from kvasir.worker.command_line import parse_command
from kvasir.worker.serving.config import MIB, RelayAccess, WorkerConfig
from kvasir.worker.serving.holdings import Holdings, open_holdings
from kvasir.worker.serving.join import RelayWorker
from kvasir.worker.serving.report import Listening, joined_json, joined_text, stopped_json
from kvasir.worker.serving.serve import WorkerServer

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker and return its exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # without this, one line for each heartbeat
    _keep_heap_small()
    try:
        config = parse_command(sys.argv[1:] if arguments is None else arguments)
        if isinstance(config, AgentConfig):
            asyncio.run(_work(config))
            return 0
        holdings = open_holdings(config.slice_path, *config.kernel)
        asyncio.run(_join(config, config.relay, holdings) if config.relay else _serve(config, holdings))
    except KvasirError as error:
        sys.stderr.write(f"kvasir-worker: {error}\n")
        return 2
    return 0


async def _work(config: AgentConfig) -> None:
    from kvasir.worker.agent.start import run_agent  # imports httpx, which serving a slice does not need

    if not config.json:
        logging.getLogger("kvasir").setLevel(logging.ERROR)  # the agent reports these events itself
    await run_agent(config, _stop_signal)


async def _serve(config: WorkerConfig, holdings: Holdings) -> None:
    stop = _stop_signal()
    server = WorkerServer(config, holdings)
    listening = Listening.of(config, holdings, *await server.start())
    _say(listening.as_json() if config.json else listening.as_text())
    reason = await stop
    await server.stop(reason)
    _say(stopped_json(reason) if config.json else f"stopped: {reason}")


async def _join(config: WorkerConfig, relay: RelayAccess, holdings: Holdings) -> None:
    def joined() -> None:
        _say(joined_json(relay.url, holdings) if config.json else joined_text(relay.url, holdings))

    stop = _stop_signal()
    worker = RelayWorker(relay, holdings, config.limits, on_joined=joined)
    stop.add_done_callback(lambda done: worker.stop(done.result()))
    await worker.run()
    _say(stopped_json(stop.result()) if config.json else f"stopped: {stop.result()}")


def _stop_signal() -> asyncio.Future[str]:
    """Return a future that gets the reason when this process receives a stop signal."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop, number)
    return stop


def _ask_to_stop(stop: asyncio.Future[str], number: signal.Signals) -> None:
    if not stop.done():
        stop.set_result(f"the worker got {number.name}")


def _keep_heap_small() -> None:
    """Return large buffers to the system as soon as they are freed, where the C library is glibc.

    At most two arenas, and each buffer of 1 MiB or more in a mapping of its own. By default glibc raises that threshold
    to 32 MiB once large buffers are freed, and frames of megabytes then leave holes in the heap.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(M_ARENA_MAX, 2)
    mallopt(M_MMAP_THRESHOLD, MIB)
    mallopt(M_TRIM_THRESHOLD, MIB)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
