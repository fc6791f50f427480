"""What `manage.py up` reads from the environment, and how its terminal keeps lines apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvasir.errors import ConfigError
from kvasir.gguf.index import GGUFIndex
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES, experts_for_budget
from kvasir.slicing.model_card import ModelCard
from kvasir_site.supervisor.children import Blueprint
from kvasir_site.supervisor.credentials import Credentials
from kvasir_site.supervisor.local_slices import cut_shares, forget_work, share_budget
from kvasir_site.supervisor.policy import Phase, Start, Supervision
from kvasir_site.supervisor.redis_server import PrivateRedis, RedisBinary
from kvasir_site.supervisor.settings import UpSettings
from kvasir_site.supervisor.state import only_one
from kvasir_site.supervisor.terminal import Terminal
from tests.oracles.tiny_gguf import TinyModel, write_tiny

REDIS = PrivateRedis(RedisBinary(Path("valkey-server"), "a test's"), 6390, "password")
CREDENTIALS = Credentials(("secret-1", "secret-2", "secret-3"), "secret-b", "key")


def blueprint(tmp_path: Path, redis: PrivateRedis | None = REDIS, **environ: str) -> Blueprint:
    settings = UpSettings.from_environ({"KVASIR_LOCAL_WORKERS": "3"} | environ)
    return Blueprint(settings, redis, 200_000_000, CREDENTIALS, tmp_path, lambda name: ["celery", name], 20.0)


def test_defaults_are_one_service_on_the_loopback() -> None:
    settings = UpSettings.from_environ({})
    assert (settings.host, settings.port, settings.n_workers, settings.once) == ("127.0.0.1", 8000, 2, False)
    assert settings.redis_url == ""
    assert settings.worker_threads >= 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KVASIR_PORT", "65536"),
        ("KVASIR_RELAY_PORTS", "8001,x"),
        ("KVASIR_RELAY_PORTS", "0"),
        ("KVASIR_LOCAL_WORKERS", "65"),
        ("KVASIR_LOCAL_BACKBONES", "0"),
        ("KVASIR_ONCE", "maybe"),
    ],
)
def test_what_cannot_be_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        UpSettings.from_environ({name: value})


def test_ports_must_differ() -> None:
    with pytest.raises(ConfigError, match="must all be different"):
        UpSettings.from_environ({"KVASIR_PORT": "8001", "KVASIR_RELAY_PORTS": "8002,8001"})
    UpSettings.from_environ({"KVASIR_PORT": "0"})


@pytest.mark.parametrize(
    ("host", "reachable"),
    [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]"), ("10.0.0.5", "10.0.0.5")],  # noqa: S104 - a text
)
def test_own_processes_reach_a_server_that_listens_everywhere(host: str, reachable: str) -> None:
    assert replace(UpSettings.from_environ({}), host=host).reachable_host == reachable


def test_children_start_and_stop_in_order(tmp_path: Path) -> None:
    children = blueprint(tmp_path, KVASIR_RELAY_PORTS="8001,8002", KVASIR_LOCAL_BACKBONES="2").children()
    service, started = Supervision([child.plan for child in children]), []
    for now in range(4):
        for action in service.tick(float(now)):
            assert isinstance(action, Start)
            started.append(action.name)
            service.became_ready(action.name, float(now))
    assert started[:4] == ["redis", "web", "relay-1", "relay-2"]
    assert set(started[4:]) == {"worker-1", "worker-2", "worker-3", "backbone-1", "backbone-2"}
    service.stop(10.0)
    order = []
    while not service.has_ended:
        stopping = [name for name in started if service.phase_of(name) is Phase.STOPPING]
        order.append({name.split("-")[0] for name in stopping})
        for name in stopping:
            service.ended(name, "exit code 0", 11.0)
        service.tick(11.0)
    assert order == [{"backbone"}, {"worker"}, {"web", "relay"}, {"redis"}]


def test_workers_know_site_and_budget_join_the_relays_in_turn_and_get_their_tokens_unseen(tmp_path: Path) -> None:
    children = blueprint(tmp_path, KVASIR_RELAY_PORTS="8001,8002").children()
    workers = [child for child in children if child.plan.name.startswith("worker")]
    for child in workers:
        assert child.command[3:7] == ["join", "http://127.0.0.1:8000", "--budget", "200000000"]
        assert "--slice" not in child.command
    relays = [child.command[-1].split(":")[2] for child in workers]
    assert relays == ["8001/relay", "8002/relay", "8001/relay"]
    assert len({child.command[child.command.index("--state-dir") + 1] for child in workers}) == 3
    assert "--relay" not in blueprint(tmp_path).children()[2].command  # the site's own
    assert [child.stdin for child in workers] == [b"secret-1", b"secret-2", b"secret-3"]
    for child in children:
        assert "secret-" not in " ".join(child.command) + repr(child)
        assert "password" not in " ".join(child.command) + repr(child)


def test_a_redis_that_is_given_is_not_started(tmp_path: Path) -> None:
    children = blueprint(tmp_path, None, REDIS_URL="redis://elsewhere:6379/3").children()
    assert children[0].plan.name == "web"
    assert children[0].plan.needs == ()
    assert children[0].environment["REDIS_URL"] == "redis://elsewhere:6379/3"


def test_slices_are_cut_once(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", TinyModel("qwen3moe", "Q4_K"))
    first = cut_shares(model, 3, tmp_path / "slices")
    assert [path.stem.partition("experts-")[2] for path in first] == ["0-5", "5-10", "10-16"]
    times = [path.stat().st_mtime_ns for path in first]
    first[1].write_bytes(b"no slice")
    assert cut_shares(model, 3, tmp_path / "slices") == first
    changed = [path.stat().st_mtime_ns != before for path, before in zip(first, times, strict=True)]
    assert changed == [False, True, False]
    assert len(cut_shares(model, 100, tmp_path / "slices")) == 16


def test_budgets_hold_all_experts_together(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", TinyModel("qwen3moe", "Q4_K"))
    with GGUFIndex.open(model) as index:
        card = ModelCard.from_index(index)
    for n_workers in (1, 2, 3):
        budget = share_budget(model, n_workers)
        assert n_workers * experts_for_budget(card, budget) >= card.n_expert * len(card.layers)
        share = sum(layer.expert_bytes * card.n_expert for layer in card.layers) / n_workers
        assert budget - WORKER_OVERHEAD_BYTES - share <= max(layer.expert_bytes for layer in card.layers) + 1


def test_a_new_run_keeps_what_was_fetched_and_forgets_who_was_promised_what(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "state.json").touch()
    (tmp_path / "1" / "slices").touch()
    forget_work(tmp_path)
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["slices"]


def test_lines_never_land_in_the_middle_of_a_text() -> None:
    shown: list[str] = []
    terminal = Terminal(shown.append)
    terminal.stream("Once upon ")
    terminal.stream("")
    terminal.say("worker-1 ended")
    terminal.stream("a time.\n")
    terminal.say("done")
    assert "".join(shown) == "Once upon \nworker-1 ended\na time.\ndone\n"


def test_a_run_directory_has_one_service(tmp_path: Path) -> None:
    with only_one(tmp_path), pytest.raises(ConfigError, match=r"already runs.*KVASIR_RUN_DIR"), only_one(tmp_path):
        pass
    with only_one(tmp_path):
        pass
