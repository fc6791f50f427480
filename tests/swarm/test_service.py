"""The whole service as `make run` starts it: what a client gets, and what happens when parts of it are killed.

One service for the module. Texts are compared with the engine in this process alone.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from backbone.engine.serving.loaded_model import LoadedModel
from backbone.engine.swarm.transport import NoWorkers
from backbone.management.generation import generate
from backbone.sampling_params import SamplingParams
from kvasir_site.supervisor.ports import free_port
from tests.swarm.service_process import PATIENCE_S, ServiceProcess, service_process

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "kvasir-demo-moe.q4_k_m.gguf"
MODEL = DEMO_MODEL.stem
PROMPT = "The old dog was"
LOST_WITHIN_S = 5.0  # stated: a backbone or Redis that dies gives a typed error within this time
N_BEFORE = 4  # tokens before something is killed


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    with LoadedModel.open(DEMO_MODEL, n_slot=1, n_ctx=512, n_threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with service_process(
        tmp_path_factory.mktemp("service"),
        "--max-tokens=12",
        KVASIR_RELAY_PORTS=str(free_port()),
        KVASIR_CTX="512",
        KVASIR_SLOTS="8",
        KVASIR_THREADS="1",
    ) as started:
        yield started


@pytest.fixture
def client(service: ServiceProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.url}/v1", api_key=service.key, max_retries=0, timeout=60) as made:
        yield made


def asked(loaded: LoadedModel, seed: int, n_tokens: int) -> dict[str, Any]:
    """A request that runs to its last token: no text ends by itself."""
    never = dict.fromkeys(loaded.tokenizer.eog_ids, -100.0)
    return {"temperature": 0.8, "seed": seed, "max_tokens": n_tokens, "logit_bias": never}


def alone(loaded: LoadedModel, sampling: dict[str, Any]) -> str:
    """The text by this process's engine."""
    prompt = loaded.tokenizer.encode(PROMPT, add_special=True, parse_special=False)
    pieces: list[str] = []
    generate(loaded, NoWorkers(), [prompt], SamplingParams(**sampling), on_text=lambda _, text: pieces.append(text))
    return "".join(pieces)


class Reading:
    """A streamed completion that is read piece by piece."""

    def __init__(self, client: openai.OpenAI, sampling: dict[str, Any]) -> None:
        bias = {str(token): value for token, value in sampling["logit_bias"].items()}
        self._stream = client.completions.create(
            model=MODEL,
            prompt=PROMPT,
            stream=True,
            stream_options={"include_usage": True},
            **sampling | {"logit_bias": bias},
        )
        self.text = ""
        self.usage: Any = None

    def read(self, n_pieces: int | None = None) -> None:
        """So many pieces more, or all."""
        for chunk in self._stream:
            self.usage = chunk.usage or self.usage
            if chunk.choices:
                self.text += chunk.choices[0].text
                n_pieces = n_pieces - 1 if n_pieces else n_pieces
            if n_pieces == 0:
                return

    def close(self) -> None:
        self._stream.close()

    @property
    def shares(self) -> dict[str, float]:
        """Who computed the row-experts."""
        return dict(self.usage.model_extra["kvasir"])


def read_all(client: openai.OpenAI, sampling: dict[str, Any]) -> Reading:
    with closing(Reading(client, sampling)) as reading:
        reading.read()
    return reading


def recovered(service: ServiceProcess, client: openai.OpenAI, loaded: LoadedModel) -> None:
    """Soon requests are served by workers alone again; until then they may fail, with errors of the API."""
    sampling = asked(loaded, 5, 6)
    expected, until, last = alone(loaded, sampling), time.monotonic() + PATIENCE_S, "nothing"
    while time.monotonic() < until:
        try:
            reading = read_all(client, sampling)
        except openai.APIError as error:
            last = repr(error)
        else:
            assert reading.text == expected
            if reading.shares["workers"] == 1:
                return
            last = str(reading.shares)
    raise AssertionError(f"it does not recover, last: {last}\n{service.report()}")


def test_what_the_terminal_shows(service: ServiceProcess) -> None:
    said = service.said
    assert "row-experts by workers 100.0%, hot cache 0.0%, backbone's own replica 0.0%" in said
    assert "identical: the text of 12 tokens equals that of one process alone" in said
    assert said.index("redis is ready") < said.index("web is ready") < said.index("backbone is ready")
    assert said.count(service.key) == 2  # by itself, and in the line to paste
    assert "Traceback" not in said


def test_the_line_to_paste_works(service: ServiceProcess) -> None:
    (line,) = re.findall(r"^curl .*$", service.said, re.MULTILINE)
    words = shlex.split(line)
    assert words[:2] == ["curl", "-N"]
    options = list(zip(words[3::2], words[4::2], strict=True))
    headers = dict(value.split(": ", 1) for name, value in options if name == "-H")
    (body,) = (value for name, value in options if name == "-d")
    reply = httpx.post(words[2], headers=headers, content=body, timeout=60, trust_env=False)
    assert reply.status_code == 200
    assert reply.text.endswith("data: [DONE]\n\n")
    first = next(line for line in reply.text.splitlines() if line.startswith("data: "))
    assert json.loads(first.removeprefix("data: "))["model"] == MODEL


def test_the_snippet_of_the_readme_works(service: ServiceProcess, capsys: pytest.CaptureFixture[str]) -> None:
    readme = (DEMO_MODEL.parents[1] / "README.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    exec(snippet.replace("http://127.0.0.1:8000", service.url).replace("kvk-...", service.key), {})  # noqa: S102
    assert len(capsys.readouterr().out.split()) > 10


def test_secrets_are_nowhere_on_disk(service: ServiceProcess) -> None:
    held = [path for path in service.run_dir.rglob("*") if path.is_file()]
    assert len(held) > 5
    secret = service.key.rpartition("-")[2].encode()
    assert [path.name for path in held if secret in path.read_bytes()] == []


def test_streaming_and_not_give_the_text_of_one_process(
    service: ServiceProcess, client: openai.OpenAI, loaded: LoadedModel
) -> None:
    sampling = asked(loaded, 11, 16)
    reading = read_all(client, sampling)
    assert reading.text == alone(loaded, sampling)
    assert (reading.shares["workers"], reading.shares["fallback"]) == (1, 0)
    bias = {str(token): value for token, value in sampling["logit_bias"].items()}
    whole = client.completions.create(model=MODEL, prompt=PROMPT, **sampling | {"logit_bias": bias})
    assert whole.choices[0].text == reading.text


@pytest.mark.parametrize("name", ["worker-1", "relay-1"])
def test_a_part_that_computes_is_killed_in_mid_generation(
    name: str, service: ServiceProcess, client: openai.OpenAI, loaded: LoadedModel
) -> None:
    sampling = asked(loaded, 12, 160)
    with closing(Reading(client, sampling)) as reading:
        reading.read(N_BEFORE)
        position = service.kill(name)
        reading.read()
    assert reading.text == alone(loaded, sampling)
    assert 0 < reading.shares["fallback"] < 1
    assert reading.shares["workers"] > 0
    service.wait_for(f"{name} ended (killed by SIGKILL); it is started again", position)
    service.wait_for(f"{name} is ready again", position)
    recovered(service, client, loaded)


@pytest.mark.long
@pytest.mark.parametrize("name", ["backbone", "redis"])
def test_a_part_that_holds_the_answer_is_killed_in_mid_generation(
    name: str, service: ServiceProcess, client: openai.OpenAI, loaded: LoadedModel
) -> None:
    """A typed error within the stated time. A Redis that is back soon enough may also cost nothing at all."""
    sampling = asked(loaded, 13, 400)
    expected, error = alone(loaded, sampling), None
    with closing(Reading(client, sampling)) as reading:
        reading.read(N_BEFORE)
        position = service.kill(name)
        began = time.monotonic()
        try:
            reading.read()
        except openai.APIError as raised:
            error = raised
            assert time.monotonic() - began < LOST_WITHIN_S
    assert len(reading.text) > 0
    assert expected.startswith(reading.text)
    if error is not None:
        assert error.code == {"backbone": "backbone_lost", "redis": "redis_lost"}[name]
    else:
        assert (name, reading.text) == ("redis", expected)
    service.wait_for(f"{name} is ready again", position)
    recovered(service, client, loaded)


def test_the_web_server_is_killed(service: ServiceProcess, client: openai.OpenAI, loaded: LoadedModel) -> None:
    position = service.kill("web")
    service.wait_for("web is ready again", position)
    recovered(service, client, loaded)


def test_a_second_service_in_the_same_place_is_refused(service: ServiceProcess) -> None:
    second = ServiceProcess(service.run_dir)
    assert second.wait_ended() == 1
    assert f"a service already runs in {service.run_dir}" in second.said


def test_ctrl_c_stops_everything_in_order(service: ServiceProcess) -> None:  # the last test of this module
    assert len(service.pids()) == 6
    key = service.key
    assert service.stop() == 0
    assert service.said.endswith("stopped\n")
    assert service.pids() == {}
    assert not (service.run_dir / "credentials.json").exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.url}/healthz", trust_env=False)
    logs = {path.stem: path.read_text() for path in (service.run_dir / "logs").glob("*.log")}
    assert "Valkey is now ready to exit" in logs["redis"]
    assert all(key not in log for log in logs.values())
