"""The supervisor with real, tiny children: shells that end, hang, or die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kvasir_site.supervisor.child import Child
from kvasir_site.supervisor.policy import ChildPlan
from kvasir_site.supervisor.runner import ServiceFailed, Supervisor

PATIENCE_S = 20.0
SERVE = "import signal, sys, time; print('serving', flush=True); signal.pause()"


def python(name: str, program: str, **plan: object) -> Child:
    command = [sys.executable, "-c", program]
    return Child(ChildPlan(name, **plan), command, lambda log: "serving" in log)  # type: ignore[arg-type]


class Watched(Supervisor):
    """A supervisor that remembers what it said, and lets a test act on it."""

    def __init__(self, directory: Path, *children: Child) -> None:
        self.lines: list[str] = []
        self.on_line: Callable[[str], None] = lambda line: None
        super().__init__(children, directory=directory, log_dir=directory / "logs", say=self._hear)

    def _hear(self, line: str) -> None:
        self.lines.append(line)
        self.on_line(line)


def test_a_killed_child_comes_back_and_all_stop_in_order(tmp_path: Path) -> None:
    service = Watched(tmp_path, python("store", SERVE, stop_stage=1), python("worker", SERVE, needs=("store",)))

    def act(line: str) -> None:
        if "again (" in line:
            service.request_stop()

    service.on_line = act
    service.run(on_up=lambda: os.kill(service.pids["worker"], signal.SIGKILL))
    spoken = "\n".join(service.lines)
    assert "worker ended (killed by SIGKILL); it is started again in 0.5 s" in spoken
    assert "worker is ready again" in spoken
    assert service.pids == {}
    assert (tmp_path / "logs" / "worker.log").read_text().count("--- worker starts") == 2


def test_a_child_that_cannot_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    broken = python("web", "import sys; print('line one'); sys.exit('no such file: model.gguf')")
    service = Watched(tmp_path, broken, python("store", SERVE))
    with pytest.raises(ServiceFailed, match=r"web could not start: exit code 1") as raised:
        service.run(on_up=lambda: None)
    assert "  web | line one\n  web | no such file: model.gguf\n" in str(raised.value)
    assert service.pids == {}


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    service = Watched(tmp_path, Child(ChildPlan("store"), ["no-such-program"], lambda log: True))
    with pytest.raises(ServiceFailed, match=r"store could not start: .*no-such-program"):
        service.run(on_up=lambda: None)


def test_a_failure_is_raised_once_all_have_ended(tmp_path: Path) -> None:
    service = Watched(tmp_path, python("store", SERVE))
    with pytest.raises(ServiceFailed, match="the sample is wrong"):
        service.run(on_up=lambda: service.fail("the sample is wrong"))


def test_a_failure_after_the_stop_changes_nothing(tmp_path: Path) -> None:
    service = Watched(tmp_path, python("store", SERVE))

    def stop_and_fail() -> None:
        service.request_stop()
        service.fail("the stream broke, because of the stop")

    service.run(on_up=stop_and_fail)


def test_one_that_ignores_the_first_stop_is_ended_by_the_second(tmp_path: Path) -> None:
    stubborn = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *a: print('never', flush=True))\n"
    stubborn += "print('serving', flush=True)\nwhile True: signal.pause()"
    service = Watched(tmp_path, python("store", stubborn, stop_deadline_s=600))

    def twice() -> None:
        service.request_stop()
        service.request_stop()

    service.run(on_up=twice)
    assert service.pids == {}


def test_what_a_child_reads_and_where_it_runs(tmp_path: Path) -> None:
    program = "import os, sys; print(sys.stdin.read(), os.environ['KEY'], os.getcwd(), 'serving', flush=True)\n"
    program += "import signal; signal.pause()"
    child = Child(
        ChildPlan("store"), [sys.executable, "-c", program], lambda log: "serving" in log, {"KEY": "value"}, b"words"
    )
    service = Watched(tmp_path, child)
    service.run(on_up=service.request_stop)
    assert f"words value {tmp_path} serving" in (tmp_path / "logs" / "store.log").read_text()


def test_the_log_of_the_run_before_is_kept(tmp_path: Path) -> None:
    for _ in range(2):
        service = Watched(tmp_path, python("store", SERVE))
        service.run(on_up=service.request_stop)
    assert sorted(p.name for p in (tmp_path / "logs").iterdir()) == ["store.log", "store.log.1"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.unit.test_supervisor import SERVE, Watched, python\n"
        "service = Watched(Path(sys.argv[1]), python('store', SERVE))\n"
        "service.run(on_up=lambda: print(service.pids['store'], flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    until = time.monotonic() + PATIENCE_S
    while is_running(child):
        assert time.monotonic() < until, "the child outlives the supervisor"
        os.sched_yield()


def is_running(pid: int) -> bool:
    """Neither gone nor a zombie that nobody has collected."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
