"""Workers die at random while the whole service writes 50 texts, and others join: no text ever shows it.

Workers know a site and a budget, nothing else. In the end coverage is back at its target and the ledger is sound.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from kvasir_site.supervisor.local_slices import share_budget
from tests.swarm.agent_process import AgentProcess
from tests.swarm.service_process import PATIENCE_S, ROOT, ServiceProcess, service_process

pytestmark = pytest.mark.long

MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
PROMPT = "The old dog was"
LEASE_S = 6.0
N_TEXTS, N_TOKENS = 50, 12
KILL_AT = (24, 47)  # two of the texts, in the middle of each
LONGEST_S = 30.0  # of one text; nothing waits for a worker longer than its deadline
PARAMS: dict[str, Any] = {"temperature": 0.8, "max_tokens": N_TOKENS}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with service_process(
        tmp_path_factory.mktemp("chaos"),
        "--max-tokens=4",
        KVASIR_LOCAL_WORKERS="0",
        KVASIR_LEASE_S=str(LEASE_S),
        KVASIR_TARGET_REPLICAS="1",
        KVASIR_MAX_REPLICAS="1",
        KVASIR_WORKER_DEADLINE_S="2",
        KVASIR_CTX="256",
        KVASIR_THREADS="1",
    ) as started:
        yield started


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """What one process alone writes, by seed."""
    found = []
    with LoadedModel.open(MODEL, n_slot=1, n_ctx=256, n_threads=1) as loaded:
        prompt = loaded.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        for seed in range(N_TEXTS):
            found.append(alone(loaded, prompt, SamplingParams(seed=seed, **PARAMS)))
    return found


def alone(loaded: LoadedModel, prompt: list[int], params: SamplingParams) -> str:
    pieces: list[str] = []
    generate(loaded, NoWorkers(), [prompt], params, on_text=lambda _, text: pieces.append(text))
    return "".join(pieces)


class Swarm:
    """Agents of one service. Each new one is a newcomer."""

    def __init__(self, service: ServiceProcess, directory: Path, stack: ExitStack) -> None:
        self._service, self._directory, self._stack = service, directory, stack
        self._budget = share_budget(MODEL, 2)
        self.living: list[AgentProcess] = []
        self.killed_at = 0.0
        self.n_by_workers = 0.0  # row-experts

    def join(self) -> AgentProcess:
        name = f"agent-{len(list(self._directory.glob('*.log')))}"
        agent = AgentProcess(self._service.url, self._budget, self._directory / name)
        self._stack.callback(agent.close)
        self.living.append(agent)
        return agent

    def kill_one(self, chance: random.Random) -> None:
        self.living.pop(chance.randrange(len(self.living))).kill()
        self.killed_at = time.monotonic()

    def has_healed(self) -> bool:
        """Whether all is covered although those that died count no more."""
        return time.monotonic() > self.killed_at + LEASE_S and self.is_covered()

    def is_covered(self) -> bool:
        headers = {"authorization": f"Bearer {self.living[0].token()}"}
        url = f"{self._service.url}/api/expert-demand"
        answer = httpx.get(url, headers=headers, timeout=PATIENCE_S, trust_env=False).raise_for_status()
        return not answer.json()["recruiting"]


def write(client: openai.OpenAI, seed: int, swarm: Swarm, chance: random.Random) -> tuple[str, float]:
    """A text and how long it took; in some of them a worker dies at the fourth token, and another joins."""
    began, text = time.monotonic(), ""
    stream = client.completions.create(
        model=MODEL.stem, prompt=PROMPT, seed=seed, stream=True, stream_options={"include_usage": True}, **PARAMS
    )
    for number, chunk in enumerate(stream):
        if chunk.usage is not None:
            swarm.n_by_workers += _by_workers(chunk.usage)
        text += chunk.choices[0].text if chunk.choices else ""
        if seed in KILL_AT and number == 3:
            swarm.kill_one(chance)
            swarm.join()
    return text, time.monotonic() - began


def _by_workers(usage: Any) -> float:
    found: dict[str, float] = usage.model_extra["kvasir"]
    return found["workers"] * found["row_experts"]


def test_fifty_texts_while_workers_die_and_others_join(
    service: ServiceProcess, texts: list[str], tmp_path: Path
) -> None:
    chance = random.Random(7)
    with ExitStack() as stack:
        swarm = Swarm(service, tmp_path, stack)
        client = stack.enter_context(
            openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, max_retries=0, timeout=LONGEST_S)
        )
        for _ in range(2):
            swarm.join().wait_for("stated")
        for seed in range(N_TEXTS):
            text, took_s = write(client, seed, swarm, chance)
            assert (seed, text) == (seed, texts[seed])
            assert took_s < LONGEST_S
        assert swarm.n_by_workers > 0
        while not swarm.has_healed():
            assert time.monotonic() < swarm.killed_at + 2 * LEASE_S, service.report()
            time.sleep(0.1)
        swarm.living[-1].wait_for("settled")
    assert verified(service)["is_sound"]


def verified(service: ServiceProcess) -> dict[str, Any]:
    """What `manage.py verify_ledger` finds."""
    environment = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    done = subprocess.run(
        [sys.executable, "manage.py", "verify_ledger", "--json"],
        cwd=ROOT, env=environment | {"KVASIR_RUN_DIR": str(service.run_dir)},
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
