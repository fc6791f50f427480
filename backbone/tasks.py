"""The only place where Celery and the engine meet: one task, and the life of the process around it.

The model is loaded in `worker_init`, so before the first request is taken. A request is acknowledged when its task
begins and claimed in Redis by its first statement, so it is generated once or not at all. Time limits and revoking do
nothing in a pool of threads: deadlines and cancels are the engine's.
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
_CHATTY = ("celery.worker.strategy", "celery.app.trace")  # two lines for each request
_process: BackboneProcess | None = None


@worker_init.connect
def load(sender: Any, **_: Any) -> None:
    """Load the model, when this worker takes from the backbone's queue at all."""
    global _process  # noqa: PLW0603  # one engine a process, as long as the process
    if QUEUE not in sender.app.amqp.queues.consume_from:
        return
    logging.basicConfig(level=logging.INFO)  # Celery sets its own up only after this signal
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    try:
        if not settings.KVASIR_SERVICE.model.is_file():
            raise ConfigError(
                f"the model {settings.KVASIR_SERVICE.model} does not exist: set KVASIR_MODEL to a GGUF file"
            )
        from backbone.process.backbone_process import BackboneProcess  # here, so that other workers need no torch

        _process = BackboneProcess(settings.KVASIR_SERVICE, settings.CELERY_BROKER_URL, _end_process)
        _process.start()
    except (KvasirError, OSError) as error:
        sys.stderr.write(f"the backbone cannot start: {error}\n")
        raise SystemExit(1) from error


@worker_shutting_down.connect
def drain(**_: Any) -> None:
    """Celery now waits for the tasks; this lets them end in time. Called in a signal handler: it must not wait."""
    if _process is not None:
        threading.Thread(target=_process.drain, name="kvasir-drain", daemon=True).start()


@worker_shutdown.connect
def close(**_: Any) -> None:
    """All tasks have ended."""
    if _process is not None:
        _process.stop()


@shared_task(name=TASK, ignore_result=True, acks_late=False)
def generate(request_json: str) -> None:
    """One request, from its beginning to its last event."""
    if _process is None:
        logger.error("a request reached a process without an engine: start it with -Q %s", QUEUE)
        return
    _process.generate(request_json)


def _end_process() -> None:
    """The engine is dead or hangs: leave, so that whoever supervises this process starts a new one."""
    os.kill(os.getpid(), signal.SIGTERM)
    # A hanging engine's tasks never end, and Celery would wait for them.
    last_resort = threading.Timer(settings.KVASIR_SERVICE.stop_s + _LAST_RESORT_S, os._exit, (1,))
    last_resort.daemon = True
    last_resort.start()
