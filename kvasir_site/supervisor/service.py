"""The whole service on this machine, from nothing to Ctrl-C. `manage.py up` calls it.

Brings children up in order, then generates a sample through the public API, compares it with one process alone, and
says how to use the service.
"""

from __future__ import annotations

import json
import logging
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.errors import KvasirError
from kvasir_site.supervisor.runner import ServiceFailed, Supervisor
from kvasir_site.supervisor.sample import Sample, SampleRequest, served_model, wait_for_workers, write_sample
from kvasir_site.supervisor.settings import UpSettings
from kvasir_site.supervisor.terminal import Terminal

logger = logging.getLogger(__name__)

ALONE_DEADLINE_S = 600.0
WORKERS_DEADLINE_S = 60.0
SAMPLE_TRIES = 5  # a worker that a busy machine let wait too long is left out for a while, which proves nothing wrong


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """The prompt of the sample, its sampling, and the model file."""

    model_path: Path
    prompt: str
    sampling: Mapping[str, Any]


class ServiceUse:
    """The steps once the service is up: sample, proof, instructions. They run in a thread of their own."""

    def __init__(
        self, supervisor: Supervisor, terminal: Terminal, settings: UpSettings, plan: SamplePlan, key: str
    ) -> None:
        self._supervisor = supervisor
        self._terminal = terminal
        self._settings = settings
        self._plan = plan
        self._key = key
        self._base_url = f"http://{settings.reachable_host}:{settings.port}"

    def start(self) -> None:
        """Begin; what goes wrong stops the service with a failure."""
        threading.Thread(target=self._run, name="kvasir-sample", daemon=True).start()

    def _run(self) -> None:
        try:
            model = self._show_sample()
        except KvasirError as error:
            self._supervisor.fail(str(error))
            return
        except Exception as error:
            logger.exception("the sample failed")
            self._supervisor.fail(f"the sample failed: {type(error).__name__}: {error}")
            return
        if self._settings.once:
            self._supervisor.request_stop()
        else:
            self._show_use(model)

    def _show_sample(self) -> str:
        """Generate, compare, tell. Returns the model's name."""
        model = served_model(self._base_url, self._key)
        request = SampleRequest(model, self._plan.prompt, self._plan.sampling)
        for n_left in reversed(range(SAMPLE_TRIES)):
            sample = self._write(request)
            check_alone(sample, self._plan)
            if sample.is_by_workers or not self._settings.n_workers:
                break
            if n_left:
                self._terminal.say("not all by workers, for which this machine may be too busy: once more")
            elif sample.share_workers == 0:
                raise ServiceFailed(f"workers computed nothing of the sample in {SAMPLE_TRIES} tries")
            else:  # the text is right and workers do serve: no reason to stop
                self._terminal.say("this machine is too busy for its workers: the backbone computes what comes late")
        self._terminal.say(f"identical: the text of {sample.n_tokens} tokens equals that of one process alone")
        return model

    def _write(self, request: SampleRequest) -> Sample:
        wait_for_workers(self._base_url, self._key, self._settings.n_workers, WORKERS_DEADLINE_S)
        self._terminal.say("")
        self._terminal.stream(request.prompt)
        sample = write_sample(self._base_url, self._key, request, self._terminal.stream)
        self._terminal.say("\n" + sample.shares())
        return sample

    def _show_use(self, model: str) -> None:
        body = json.dumps({"model": model, "prompt": "The little dragon", "max_tokens": 120, "stream": True})
        self._terminal.say(
            f"\nPages    {self._base_url}/dashboard (live), /contribute, /playground, /rewards"
            f"\nAPI      {self._base_url}/v1 (what it takes: {self._base_url}/v1/docs)"
            f"\nHealth   {self._base_url}/healthz, /readyz, /metrics"
            f"\nRelay    ws://{self._settings.reachable_host}:{self._settings.port}/relay"
            f"\nAPI key  {self._key} (shown only here; it counts until this service stops)"
            "\nTry it:\n"
            f"\ncurl -N {self._base_url}/v1/completions -H 'Authorization: Bearer {self._key}' "
            f"-H 'Content-Type: application/json' -d '{body}'\n"
            "\nCtrl-C stops everything."
        )


def check_alone(sample: Sample, plan: SamplePlan) -> None:
    """Generate the same in a process without service or workers. Raises ServiceFailed unless the text is equal."""
    asked = {"model": str(plan.model_path), "prompt": plan.prompt, "sampling": dict(plan.sampling)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvasir_site.supervisor.sample_alone"],
            input=json.dumps(asked), capture_output=True, text=True, timeout=ALONE_DEADLINE_S, check=False,
        )  # fmt: skip
        alone = json.loads(done.stdout) if done.returncode == 0 else None
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise ServiceFailed(f"the run in one process alone gave no answer: {error}") from error
    if alone is None:
        words = " | ".join(done.stderr.strip().splitlines()[-5:])
        raise ServiceFailed(f"the run in one process alone failed ({done.returncode}): {words}")
    if alone["text"] != sample.text or alone["n_tokens"] != sample.n_tokens:
        at = next((i for i, (a, b) in enumerate(zip(alone["text"], sample.text, strict=False)) if a != b), None)
        where = f"at character {at}" if at is not None else f"in length ({sample.n_tokens} tokens)"
        raise ServiceFailed(f"not identical: the service's text differs {where} from one process alone")


def new_secret() -> str:
    """A secret that all processes of this run share."""
    return secrets.token_urlsafe(48)
