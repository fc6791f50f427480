"""Celery's task for a request, and the signals that start and stop the backbone process.

`worker_init` loads the model before the first request. A request is acknowledged when its task begins and then claimed
in Redis, so it is generated at most once. Celery's time limits and revocation have no effect in a pool of threads: the
engine handles deadlines and cancels.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

from celery import shared_task
from celery.signals import worker_init, worker_shutdown, worker_shutting_down
from django.conf import settings

from backbone.stream.keys import QUEUE, TASK
from kvasir.errors import ConfigError, KvasirError

if TYPE_CHECKING:
    from backbone.process.backbone_process import BackboneProcess

logger = logging.getLogger(__name__)

_LAST_RESORT_S = 15.0
_VERBOSE = ("celery.worker.strategy", "celery.app.trace")  # two lines for each request
_process: BackboneProcess | None = None


@worker_init.connect
def load(sender: Any, **_: Any) -> None:
    """Load the model if this worker consumes the backbone's queue."""
    global _process  # noqa: PLW0603  # one engine for the life of the process
    if QUEUE not in sender.app.amqp.queues.consume_from:
        return
    logging.basicConfig(level=logging.INFO)  # Celery sets up its logging after this signal
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        if not settings.KVASIR_SERVICE.model.is_file():
            raise ConfigError(
                f"the model {settings.KVASIR_SERVICE.model} does not exist: set KVASIR_MODEL to a GGUF file"
            )
        from backbone.process.backbone_process import (
            BackboneProcess,
        )  # imported here, so that other workers need no torch

        _process = BackboneProcess(settings.KVASIR_SERVICE, settings.CELERY_BROKER_URL, _end_process)
        _process.start()
    except (KvasirError, OSError) as error:
        sys.stderr.write(f"the backbone cannot start: {error}\n")
        raise SystemExit(1) from error


@worker_shutting_down.connect
def drain(**_: Any) -> None:
    """Let running tasks end in time, since Celery waits for them. Runs in a signal handler and must not block."""
    if _process is not None:
        threading.Thread(target=_process.drain, name="kvasir-drain", daemon=True).start()


@worker_shutdown.connect
def close(**_: Any) -> None:
    """Stop the process after all tasks have ended."""
    if _process is not None:
        _process.stop()


@shared_task(name=TASK, ignore_result=True, acks_late=False)
def generate(request_json: str) -> None:
    """Serve one request until its last event."""
    if _process is None:
        logger.error("a request reached a process without an engine: start it with -Q %s", QUEUE)
        return
    _process.generate(request_json)


def _end_process() -> None:
    """End this process after a failure of the engine, so that its supervisor starts a new one."""
    os.kill(os.getpid(), signal.SIGTERM)
    # Tasks of a hanging engine never end, and Celery would wait for them.
    last_resort = threading.Timer(settings.KVASIR_SERVICE.stop_s + _LAST_RESORT_S, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()
