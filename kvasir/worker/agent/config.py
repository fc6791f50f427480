"""What `kvasir-worker join URL --budget SIZE` is told, checked before anything is asked of anybody.

`worker.command_line` hands the parsed options over; `__main__` starts an agent with the result.
"""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from kvasir.byte_sizes import format_size, parse_size
from kvasir.errors import ConfigError
from kvasir.kernels.backend import CPU, Backend
from kvasir.relay.directory import checked_url
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES

LONGEST_REGION = 40  # docs/reference/market.md


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Everything that the command line says."""

    site: str
    budget_bytes: int
    state_dir: Path
    invite: str = field(default="", repr=False)
    name: str = "kvasir-worker"
    region: str = ""  # told to everybody when it is given
    relay_url: str = ""  # instead of the one that the site names
    token: str = field(default="", repr=False)  # of a node that an operator made
    kernel: str = "auto"
    n_threads: int | None = None
    json: bool = False
    backend: Backend = CPU

    @property
    def room_bytes(self) -> int:
        """What the budget leaves for experts."""
        return self.budget_bytes - WORKER_OVERHEAD_BYTES


def add_agent_options(join: argparse.ArgumentParser) -> None:
    """Options of the form that needs only a budget."""
    join.add_argument("--budget", metavar="SIZE", help="memory that this worker may use, such as 2GiB or 500MB")
    join.add_argument("--invite", default="", metavar="CODE", help="where a site registers nodes by invitation only")
    join.add_argument("--name", default="kvasir-worker", metavar="NAME", help="what the site calls this node")
    join.add_argument(
        "--region", default="", metavar="WORDS", help="where this worker is, if you want the site's dashboard to say so"
    )
    join.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where token and slices are kept (default: under ~/.local/state)"
    )
    join.add_argument("--relay", default="", metavar="URL", help="a relay instead of the one that the site names")


def agent_config(options: argparse.Namespace, token: str) -> AgentConfig:
    """Check the options. Raises ConfigError that names the option and its value."""
    site = checked_site(options.url)
    budget_bytes = parse_size(options.budget)
    if budget_bytes <= WORKER_OVERHEAD_BYTES:
        raise ConfigError(
            f"--budget {options.budget} is too small: the program itself takes {format_size(WORKER_OVERHEAD_BYTES)}, "
            "and experts come on top"
        )
    return AgentConfig(
        site=site,
        budget_bytes=budget_bytes,
        state_dir=(options.state_dir or default_directory(site)).expanduser().resolve(),
        invite=options.invite,
        name=options.name.strip() or "kvasir-worker",
        region=checked_region(options.region),
        relay_url=checked_url(options.relay) if options.relay else "",
        token=token,
        kernel=options.kernel,
        backend=chosen_backend(options),
        n_threads=options.threads,
        json=options.json,
    )


def chosen_backend(options: argparse.Namespace) -> Backend:
    """What --backend and --gpu-memory ask for. Raises ConfigError for a size without a GPU to bound."""
    if options.gpu_memory is None:
        return Backend(options.backend)
    if options.backend == CPU.kind:
        raise ConfigError(f"--gpu-memory {options.gpu_memory} needs --backend gpu or --backend auto")
    return Backend(options.backend, parse_size(options.gpu_memory))


def checked_site(url: str) -> str:
    """A site's address, without a slash at its end. Raises ConfigError unless it is http(s) and free of secrets."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"site address {url!r} is not one such as https://kvasir.example.org")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("a site's address holds no user, password, query or fragment")
    return url.rstrip("/")


def checked_region(text: str) -> str:
    """Words for a region, without blanks around them. Raises ConfigError for more than a site takes."""
    region = text.strip()
    if len(region) > LONGEST_REGION:
        raise ConfigError(f"--region {region[:60]!r} has {len(region)} characters; at most {LONGEST_REGION} are taken")
    return region


def default_directory(site: str) -> Path:
    """Where a worker of this site keeps its state when it is not told: under the user's state directory."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "kvasir" / re.sub(r"[^A-Za-z0-9.-]", "_", urlsplit(site).netloc)
