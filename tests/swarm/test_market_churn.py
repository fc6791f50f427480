"""The joined-up swarm under churn: site, Redis, backbone and workers that know only an address, all real processes.

Two workers are killed at random during 50 generations while others join. Every text equals the in-process one, within
its deadline; coverage is back at its target within two leases; the ledger verifies; checked work of nodes is paid, that
of the operator's own worker at an address is not.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.db.models import Sum

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.slicing.model_card import ModelCard
from kvasir_site.supervisor.local_workers import LocalWorker
from market.ledger.posting import balance
from market.models.nodes import NodeToken
from market.models.work import WorkDay
from market.nodes.tokens import TokenScope, issue
from tests.site.database import database_at
from tests.swarm.backbone_service import MODEL, NEVER_ENDING, ROOT, backbones, write_model
from tests.swarm.redis_fixture import running_redis
from tests.swarm.swarm import cut
from tests.swarm.web_process import WebProcess, web_process

pytestmark = pytest.mark.long

SEED = 20
N_GENERATIONS = 50
N_TOKENS = 8
N_AGENTS = 4  # together three times the experts; without the killed ones less than the target of two replicas
N_JOINING = 2
N_KILLED = 2
AGENT_SHARE = 0.75  # of the model's experts, for each worker
TARGET = 2
LEASE_S = 8.0
GENERATION_DEADLINE_S = 20.0
PATIENCE_S = 60.0
MID_GENERATION_S = 0.05
PROMPT = "hello world"


@dataclass(slots=True)
class Agent:
    """One `kvasir-worker join --budget`, and its log."""

    process: subprocess.Popen[bytes]
    said: Path

    def events(self, name: str) -> list[dict[str, Any]]:
        """Its events of one kind so far."""
        lines = self.said.read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == name]

    @property
    def node_id(self) -> str:
        return str(self.events("registered")[0]["node_id"])

    @property
    def holds(self) -> bool:
        stated = self.events("stated")
        return bool(stated and stated[-1]["ranges"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


@dataclass(slots=True)
class Swarm:
    """The site, and the workers that were started."""

    web: WebProcess
    folder: Path
    room_bytes: int
    watcher: str  # a node's token, to read the demand with
    agents: list[Agent] = field(default_factory=list)

    def start_agent(self) -> Agent:
        folder = self.folder / f"agent{len(self.agents)}"
        folder.mkdir()
        command = [sys.executable, "-m", "kvasir.worker", "join", self.web.url, "--json", "--threads", "1"]
        command += ["--budget", str(WORKER_OVERHEAD_BYTES + self.room_bytes), "--state-dir", str(folder / "state")]
        said = folder / "said.jsonl"
        with said.open("wb") as out, (folder / "log.txt").open("wb") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )
        self.agents.append(Agent(process, said))
        return self.agents[-1]

    def is_at_target(self) -> bool:
        reply = httpx.get(
            f"{self.web.url}/api/expert-demand",
            headers={"Authorization": f"Bearer {self.watcher}"}, timeout=10, trust_env=False,
        )  # fmt: skip
        (demand,) = reply.json()["models"]
        assert demand["target_replicas"] == TARGET
        return not demand["recruiting"]

    def wait_for_target(self, until: float) -> None:
        while not self.is_at_target():
            assert time.monotonic() < until, f"coverage is below its target\n{self.report()}"
            time.sleep(0.1)

    def complete(self, seed: int) -> tuple[str, dict[str, Any], float]:
        """A text, the swarm's share in it, and the seconds that it took."""
        body = {
            "model": MODEL, "prompt": PROMPT, "seed": seed, "temperature": 0.8, "max_tokens": N_TOKENS,
            "logit_bias": NEVER_ENDING,
        }  # fmt: skip
        began = time.monotonic()
        reply = httpx.post(
            f"{self.web.url}/v1/completions",
            json=body, headers={"Authorization": f"Bearer {self.web.key}"}, timeout=PATIENCE_S, trust_env=False,
        )  # fmt: skip
        assert reply.status_code == 200, reply.text
        return reply.json()["choices"][0]["text"], reply.json()["usage"]["kvasir"], time.monotonic() - began

    def report(self) -> str:
        paths = [self.web.log, *sorted(self.folder.glob("agent*/*.*")), *sorted(self.folder.glob("b*.log"))]
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-2000:]}" for path in paths)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


@contextmanager
def swarm(model: Path, folder: Path) -> Iterator[Swarm]:
    """Everything up: a backbone, the operator's own worker with half of the experts, nodes with all at target."""
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
        expert_bytes = sum(card.expert_bytes(layer) for layer in card.moe_layers)
    environment: dict[str, Any] = {
        "KVASIR_MODEL": str(model), "KVASIR_LEASE_S": str(LEASE_S), "KVASIR_VOLUNTEER_LEASE_S": str(LEASE_S),
        "KVASIR_TARGET_REPLICAS": str(TARGET), "KVASIR_MAX_REPLICAS": str(TARGET),
        "KVASIR_REQUEST_DEADLINE_S": str(GENERATION_DEADLINE_S), "KVASIR_RUN_DIR": str(folder / "run"),
    }  # fmt: skip
    with ExitStack() as stack:
        redis = stack.enter_context(running_redis(folder))
        web = stack.enter_context(web_process(redis, folder, **environment))
        with database_at(folder / "web.sqlite3") as database:
            watcher = issue(TokenScope.WORKER, "a watcher").text
            token = issue(TokenScope.BACKBONE, "a backbone").text
        running = Swarm(web, folder, int(AGENT_SHARE * card.n_expert * expert_bytes), watcher)
        stack.callback(end, running)
        for _ in range(N_AGENTS):
            running.start_agent()
        own = LocalWorker(cut(model, [(0, card.n_expert // 2)], folder)[0], n_threads=1, log_path=folder / "own.log")
        stack.callback(own.stop)
        own.wait_ready()
        environment |= {
            "DATABASE_URL": database, "KVASIR_TOKEN": token, "KVASIR_WORKERS": own.address,
            "KVASIR_RELAYS": f"{web.url.replace('http', 'ws', 1)}/relay", "KVASIR_WORKER_DEADLINE_S": "2",
            "KVASIR_CTX": "128", "KVASIR_STOP_S": "5",
        }  # fmt: skip
        (backbone,) = stack.enter_context(backbones(redis, model, folder, **environment))
        running.wait_for_target(time.monotonic() + PATIENCE_S)
        yield running
        assert backbone.stop() == 0


def end(running: Swarm) -> None:
    for agent in running.agents:
        if agent.process.poll() is None:
            agent.kill()


def texts_alone(model: Path) -> list[str]:
    """What this process's engine writes for each seed."""
    texts = []
    never = {int(token): bias for token, bias in NEVER_ENDING.items()}
    with LoadedModel.open(model, n_slot=1, n_ctx=128, n_threads=1) as loaded:
        prompt = loaded.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        for seed in range(N_GENERATIONS):
            pieces: list[tuple[int, str]] = []
            params = SamplingParams(temperature=0.8, seed=seed, max_tokens=N_TOKENS, logit_bias=never)
            generate(loaded, NoWorkers(), [prompt], params, on_text=lambda *piece: pieces.append(piece))  # noqa: B023
            texts.append("".join(text for _, text in pieces))
    return texts


def churn(running: Swarm, writer: ThreadPoolExecutor) -> tuple[list[str], float, float]:
    """Generations while workers are killed and others join; texts, row-experts by workers, time of the last kill."""
    rng = random.Random(SEED)
    kills = set(rng.sample(range(5, N_GENERATIONS - 5), N_KILLED))
    joins = set(rng.sample(range(5, N_GENERATIONS - 5), N_JOINING))
    texts, by_workers, last_kill = [], 0.0, 0.0
    for number in range(N_GENERATIONS):
        if number in joins:
            running.start_agent()
        writing = writer.submit(running.complete, number)
        if number in kills:
            wait([writing], timeout=rng.uniform(0.0, MID_GENERATION_S))
            rng.choice([agent for agent in running.agents if agent.process.poll() is None and agent.holds]).kill()
            last_kill = time.monotonic()
        text, shares, took_s = writing.result()
        assert took_s < GENERATION_DEADLINE_S
        texts.append(text)
        by_workers += shares["row_experts"] * shares["workers"]
    return texts, by_workers, last_kill


def test_a_swarm_under_churn(model: Path, tmp_path: Path) -> None:
    with swarm(model, tmp_path) as running:
        with ThreadPoolExecutor(1) as writer:
            texts, by_workers, last_kill = churn(running, writer)
        dead = [agent for agent in running.agents if agent.process.poll() is not None]
        while time.monotonic() < last_kill + LEASE_S:  # until then the market may still count the dead
            time.sleep(0.1)
        running.wait_for_target(last_kill + 2 * LEASE_S)
        assert len(dead) == N_KILLED
        assert any(agent.holds for agent in running.agents[N_AGENTS:])  # what the others have room for is too little
        nodes = {agent.node_id for agent in running.agents}
    assert texts == texts_alone(model)
    database = tmp_path / "web.sqlite3"
    verified = subprocess.run(
        [sys.executable, "manage.py", "verify_ledger"],
        cwd=ROOT, env={**os.environ, "DATABASE_URL": f"sqlite:///{database}"},
        check=False, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert verified.returncode == 0, verified.stdout
    with database_at(database):
        check_pay(nodes, by_workers)


def check_pay(nodes: set[str], by_workers: float) -> None:
    """Nodes were paid for what they computed, the rest of the workers' row-experts were the operator's own."""
    days = WorkDay.objects.all()
    assert set(days.values_list("node_id", flat=True)) <= nodes
    paid = days.filter(reason="").aggregate(rows=Sum("row_experts"), pay=Sum("microcredits"))
    assert 0 < paid["rows"] < by_workers
    owners = set(NodeToken.objects.filter(public_id__in=nodes).values_list("account__public_id", flat=True))
    assert sum(balance(f"owner:{owner}") for owner in owners) == paid["pay"] > 0
