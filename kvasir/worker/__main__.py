"""The command `kvasir-worker`, also `python -m kvasir.worker`.

Parses, opens the slice or starts an agent, serves until SIGTERM or SIGINT, answers what is in flight and ends with exit
code 0. An error after which a worker cannot start or go on is one sentence on standard error and exit code 2.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence

from kvasir.errors import KvasirError
from kvasir.worker.agent.config import AgentConfig
from kvasir.worker.command_line import parse_command
from kvasir.worker.serving.config import WorkerConfig
from kvasir.worker.serving.holdings import Holdings, open_holdings
from kvasir.worker.serving.join import RelayWorker
from kvasir.worker.serving.memory import keep_heap_small
from kvasir.worker.serving.report import Listening, joined_json, joined_text, stopped_json
from kvasir.worker.serving.serve import WorkerServer


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the worker and return its exit code."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # else a line for each heartbeat
    keep_heap_small()
    try:
        config = parse_command(sys.argv[1:] if arguments is None else arguments)
        if isinstance(config, AgentConfig):
            asyncio.run(_work(config))
            return 0
        holdings = open_holdings(config.slice_path, config.kernel, config.n_threads, config.backend)
        asyncio.run(_join(config, holdings) if config.relay_url else _serve(config, holdings))
    except KvasirError as error:
        sys.stderr.write(f"kvasir-worker: {error}\n")
        return 2
    return 0


async def _work(config: AgentConfig) -> None:
    from kvasir.worker.agent.start import run_agent  # httpx and all that is not needed to serve a slice

    if not config.json:
        logging.getLogger("kvasir").setLevel(logging.ERROR)  # the agent says what matters itself
    await run_agent(config, _stop_signal)


async def _serve(config: WorkerConfig, holdings: Holdings) -> None:
    stop = _stop_signal()
    server = WorkerServer(config, holdings)
    listening = Listening.of(config, holdings, *await server.start())
    _say(listening.as_json() if config.json else listening.as_text())
    reason = await stop
    await server.stop(reason)
    _say(stopped_json(reason) if config.json else f"stopped: {reason}")


async def _join(config: WorkerConfig, holdings: Holdings) -> None:
    def joined() -> None:
        url = config.relay_url
        _say(joined_json(url, holdings) if config.json else joined_text(url, holdings))

    stop = _stop_signal()
    worker = RelayWorker(config, holdings, on_joined=joined)
    stop.add_done_callback(lambda done: worker.stop(done.result()))
    await worker.run()
    _say(stopped_json(stop.result()) if config.json else f"stopped: {stop.result()}")


def _stop_signal() -> asyncio.Future[str]:
    """Yields the reason once this process is asked to stop."""
    loop = asyncio.get_running_loop()
    stop: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _ask_to_stop, stop, number)
    return stop


def _ask_to_stop(stop: asyncio.Future[str], number: signal.Signals) -> None:
    if not stop.done():
        stop.set_result(f"the worker got {number.name}")


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
