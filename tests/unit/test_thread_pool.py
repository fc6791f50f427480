"""The C library's thread pool: who makes threads, what several callers get, and what happens in a forked child.

Each case runs in a process of its own, because the pool belongs to the process.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

PREPARE = """
    import os, sys, threading
    import numpy as np
    from kvasir.kernels import native
    from kvasir.kernels.rowops import NativeRowOps

    x = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
    w = np.random.default_rng(1).standard_normal((512, 512)).astype(np.float32)
    wanted = NativeRowOps(n_threads=1).matmul(x, w)

    def is_right(n_threads):
        return bool((NativeRowOps(n_threads=n_threads).matmul(x, w) == wanted).all())
"""


def run(script: str) -> str:
    """What a script prints; it must end by itself."""
    code = textwrap.dedent(PREPARE) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_one_thread_never_makes_another() -> None:
    assert run("print(is_right(1), native.load().n_helpers, threading.active_count())") == "True 0 1"


def test_helpers_are_made_when_wanted_and_kept() -> None:
    script = """
        counts = []
        for n_threads in (2, 4, 3, 4, 1):
            assert is_right(n_threads)
            counts.append(native.load().n_helpers)
        print(counts)
    """
    assert run(script) == "[1, 3, 3, 3, 3]"


def test_small_work_makes_no_thread() -> None:
    script = "NativeRowOps(n_threads=4).matmul(x[:1, :16].copy(), w[:8, :16].copy()); print(native.load().n_helpers)"
    assert run(script) == "0"


def test_several_callers_at_once_and_many_more_threads_than_cores() -> None:
    script = """
        failures = []
        def work():
            for _ in range(40):
                if not is_right(16):
                    failures.append(1)
        threads = [threading.Thread(target=work) for _ in range(6)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        print(len(failures), native.load().n_helpers)
    """
    assert run(script) == "0 15"


def test_a_forked_child_makes_its_own_helpers() -> None:
    script = """
        assert is_right(3)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            before = native.load().n_helpers
            os.write(writer, f"{before} {is_right(3)} {native.load().n_helpers}".encode())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(os.read(reader, 99).decode(), is_right(3), native.load().n_helpers)
    """
    assert run(script) == "0 True 2 True 2"


def test_a_child_forked_while_others_compute_is_not_stuck() -> None:
    script = """
        stop = threading.Event()
        def work():
            while not stop.is_set():
                NativeRowOps(n_threads=3).matmul(x, w)
        threads = [threading.Thread(target=work) for _ in range(2)]
        [thread.start() for thread in threads]
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if is_right(3) else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        [thread.join() for thread in threads]
        print("done")
    """
    assert run(script) == "done"
