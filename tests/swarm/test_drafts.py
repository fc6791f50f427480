"""Drafts in the whole service (KVASIR_SPECULATE=auto), as `make run` starts it: only its usage tells a client of them.

Real workers behind a real relay; texts are compared with the engine in this process alone, which drafts nothing.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from django.db.models import Sum

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from market.models.work import WorkDay
from tests.site.database import database_at
from tests.swarm.service_process import PATIENCE_S, ROOT, ServiceProcess, service_process

MODEL = ROOT / "models" / "kvasir-demo-moe.q4_k_m.gguf"
STORY = "The old dog sat by the door. The little girl gave the old dog a bone. "
PROMPT = STORY * 2 + "The old dog sat"
N_CTX = 640
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 0.6, "seed": 11}}
TOLD = ("row_experts", "workers", "fallback", "n_drafted", "n_accepted")
NO_SIGNALS: Mapping[int, tuple[str, signal.Signals]] = {}
ROW_EXPERTS = re.compile(r"(\d+) row-experts by workers 100\.0%")


@dataclass(frozen=True, slots=True)
class Answer:
    """A text, and what its usage says."""

    text: str
    n_prompt: int
    n_output: int
    row_experts: int
    workers: float  # their share of these
    fallback: float
    n_drafted: int
    n_accepted: int

    @property
    def n_by_workers(self) -> int:
        """Row-experts."""
        return round(self.row_experts * self.workers)

    @property
    def n_rows(self) -> int:
        """That must have been computed: each token but the last, and what was drafted in vain."""
        return self.n_prompt + self.n_output - 1 + self.n_drafted - self.n_accepted


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    with LoadedModel.open(MODEL, n_slot=1, n_ctx=N_CTX, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with service_process(
        tmp_path_factory.mktemp("drafts"),
        "--max-tokens=2",
        KVASIR_SPECULATE="auto",
        KVASIR_LOCAL_WORKERS="2",
        KVASIR_CTX=str(N_CTX),
        KVASIR_SLOTS="4",
        KVASIR_THREADS="1",
    ) as started:
        yield started


class Asking:
    """One service, what it is asked, and all that it answered."""

    def __init__(self, service: ServiceProcess, client: openai.OpenAI, loaded: LoadedModel) -> None:
        self._client, self._loaded = client, loaded
        self.service = service
        self.answers: list[Answer] = []

    @property
    def pairs_of_row(self) -> int:
        """Row-experts of one row."""
        card = self._loaded.card
        return len(card.moe_layers) * card.n_used

    def sampling(self, n_tokens: int, **sampling: Any) -> dict[str, Any]:
        """Of a text that runs to its last token."""
        never = dict.fromkeys(self._loaded.tokenizer.eog_ids, -100.0)
        return {"max_tokens": n_tokens, "logit_bias": never} | sampling

    def alone(self, asked: dict[str, Any]) -> str:
        """The text without drafts."""
        prompt = self._loaded.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
        pieces: list[str] = []
        params = SamplingParams(**asked)
        generate(self._loaded, NoWorkers(), [prompt], params, on_text=lambda _, text: pieces.append(text))
        return "".join(pieces)

    def read(self, asked: dict[str, Any], signals: Mapping[int, tuple[str, signal.Signals]] = NO_SIGNALS) -> Answer:
        """The whole answer; after so many pieces of it a part of the service gets a signal."""
        text, usage, bias = "", None, {str(token): value for token, value in asked["logit_bias"].items()}
        stream = self._client.completions.create(
            model=MODEL.stem,
            prompt=PROMPT,
            stream=True,
            stream_options={"include_usage": True},
            **asked | {"logit_bias": bias},
        )
        with closing(stream):
            for number, chunk in enumerate(stream):
                usage = chunk.usage or usage
                text += chunk.choices[0].text if chunk.choices else ""
                if number in signals:
                    name, which = signals[number]
                    os.kill(self.service.pids()[name], which)
        assert usage is not None and usage.model_extra is not None
        told = {name: usage.model_extra["kvasir"][name] for name in TOLD}
        self.answers.append(Answer(text, usage.prompt_tokens, usage.completion_tokens, **told))
        return self.answers[-1]


@pytest.fixture(scope="module")
def asking(service: ServiceProcess, loaded: LoadedModel) -> Iterator[Asking]:
    url, key = f"{service.url}/v1", service.key
    with openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_S) as client:
        yield Asking(service, client, loaded)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_drafts_are_accepted_and_the_text_is_that_without_them(name: str, asking: Asking) -> None:
    """The first drafts of a request that is alone depend on no measured time: a row's cost is not known yet."""
    asked = asking.sampling(60, **SAMPLINGS[name])
    answer = asking.read(asked)
    assert (answer.text, answer.n_output) == (asking.alone(asked), 60)
    assert 0 < answer.n_accepted <= answer.n_drafted
    assert (answer.workers, answer.fallback) == (1, 0)
    assert answer.row_experts == answer.n_rows * asking.pairs_of_row


def test_requests_that_share_steps_get_their_own_texts(asking: Asking) -> None:
    all_asked = [asking.sampling(40, temperature=0.3 * number, seed=number) for number in range(4)]
    with ThreadPoolExecutor(len(all_asked)) as threads:
        answers = list(threads.map(asking.read, all_asked))
    assert [answer.text for answer in answers] == [asking.alone(asked) for asked in all_asked]
    assert all(answer.row_experts == answer.n_rows * asking.pairs_of_row for answer in answers)


def test_a_worker_is_killed_and_another_leaves_while_drafts_are_verified(asking: Asking) -> None:
    asked = asking.sampling(400, **SAMPLINGS["sampled"])
    answer = asking.read(asked, {3: ("worker-1", signal.SIGKILL), 12: ("worker-2", signal.SIGINT)})
    assert (answer.text, answer.n_output) == (asking.alone(asked), 400)
    assert answer.n_accepted > 0
    assert 0 < answer.fallback < 1
    assert answer.workers > 0
    assert answer.row_experts == answer.n_rows * asking.pairs_of_row


def test_all_rows_of_workers_were_counted_for_their_pay(asking: Asking) -> None:  # the last test of this module
    """Those of rejected drafts too; what no check has vouched for in the end is counted, and not paid."""
    service = asking.service
    sample = ROW_EXPERTS.search(service.said)
    assert sample is not None, service.report()
    assert service.stop() == 0, service.report()
    with database_at(service.run_dir / "kvasir.sqlite3"):
        n_counted = WorkDay.objects.aggregate(n=Sum("row_experts"))["n"]
        n_paid = WorkDay.objects.filter(reason="").aggregate(n=Sum("row_experts"))["n"]
    assert n_counted == int(sample[1]) + sum(answer.n_by_workers for answer in asking.answers)
    assert n_paid > 0
