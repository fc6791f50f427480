"""One line about the machine that a benchmark ran on. Every benchmark prints it beside its figures."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path


def describe_machine() -> str:
    """Processor, usable cores, system and Python, such as "AMD EPYC 9B14, 2 cores, Linux x86_64, Python 3.11.7"."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    return f"{_processor()}, {cores} cores, {system}, Python {platform.python_version()}"


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"


def describe_commit() -> str:
    """The commit that was measured, with "+" behind it when files differ from it; "unknown" outside a checkout."""
    git = ["git", "-C", str(Path(__file__).resolve().parents[1])]
    try:
        commit = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


def memory_of(pid: int) -> tuple[int, int]:
    """Peak resident bytes of a process, pages of files included, and what is its own now (Linux)."""
    kib = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key in {"VmHWM", "RssAnon"}:
            kib[key] = int(value.split()[0])
    return kib["VmHWM"] << 10, kib["RssAnon"] << 10
