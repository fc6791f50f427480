"""The command line of `kvasir-worker`: the parser, and checks of every value before anything is opened.

`__main__` calls `parse_command` and receives a `WorkerConfig` or an `AgentConfig`. A value that cannot be used is a
ConfigError that names the option and the value.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from kvasir.byte_sizes import format_size, parse_size
from kvasir.errors import ConfigError
from kvasir.kernels.backend import BACKENDS, CPU, Backend
from kvasir.relay.directory import checked_url
from kvasir.slicing.budget import WORKER_OVERHEAD_BYTES
from kvasir.worker.agent.config import AgentConfig, NodeIdentity
from kvasir.worker.serving.config import ClientLimits, KernelChoice, RelayAccess, WorkerConfig

KERNELS = ("auto", "kx1", "float")
LEAST_INFLIGHT_MB = 16  # one request and its answer, each of the largest frame
LONGEST_REGION = 40  # docs/reference/market.md

EXAMPLE = """\
examples:
  Lend 2 GiB of memory to a site, which assigns the experts that it needs most:
    kvasir-worker join https://kvasir.example.org --budget 2GiB

  Cut the first 8 experts of every layer out of a model, then serve them:
    kvasir slice model.gguf --experts "*:0-8" --out slice.gguf
    kvasir-worker serve --slice slice.gguf --listen 127.0.0.1:7070

  Serve the same slice from behind a router or firewall, through a relay:
    kvasir-worker join wss://relay.example.org/relay --token-file token.txt --slice slice.gguf

The worker computes its experts for every backbone that connects with the same model and the same kernel.
Stop it with Ctrl-C or SIGTERM: it answers the requests in flight, then it ends.
"""


def parse_command(arguments: Sequence[str]) -> WorkerConfig | AgentConfig:
    """Parse and check the arguments. Raises ConfigError; argparse exits for --help and misuse."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.threads is not None:
        _check_between("--threads", options.threads, 1, 1024)
    if options.command == "join":
        has_token = options.token is not None or options.token_file is not None
        if (options.budget is None) == (options.slice is None):
            parser.error("join needs either --budget SIZE with a site's address, or --slice FILE with a relay's")
        if options.budget is not None:
            return _agent_config(options)
        if not has_token:
            parser.error("--slice needs --token-file or --token, with a token from the relay's operator")
    return _worker_config(options)


def parse_arguments(arguments: Sequence[str]) -> WorkerConfig:
    """Parse as `parse_command` does, for the forms with a slice. Raises ConfigError for the form with a budget too."""
    config = parse_command(arguments)
    if isinstance(config, AgentConfig):
        raise ConfigError("--slice is needed here, not --budget")
    return config


def _worker_config(options: argparse.Namespace) -> WorkerConfig:
    is_joining = options.command == "join"
    host, port = parse_address(options.listen) if not is_joining else ("", 0)
    _check_between("--max-clients", options.max_clients, 1, 1024)
    _check_between("--max-inflight-mb", options.max_inflight_mb, LEAST_INFLIGHT_MB, 4095)
    if not options.slice.is_file():
        raise ConfigError(f"--slice {options.slice}: the file does not exist; cut one with `kvasir slice`")
    token = read_token(options.token, options.token_file) if is_joining else ""
    return WorkerConfig(
        slice_path=options.slice,
        host=host,
        port=port,
        relay=RelayAccess(checked_url(options.url), token) if is_joining else None,
        kernel=_kernel_choice(options),
        limits=ClientLimits(options.max_clients, options.max_inflight_mb),
        json=options.json,
    )


def _agent_config(options: argparse.Namespace) -> AgentConfig:
    site = checked_site(options.url)
    budget_bytes = parse_size(options.budget)
    if budget_bytes <= WORKER_OVERHEAD_BYTES:
        raise ConfigError(
            f"--budget {options.budget} is too small: the program itself takes {format_size(WORKER_OVERHEAD_BYTES)}, "
            "and experts need more on top"
        )
    return AgentConfig(
        site=site,
        budget_bytes=budget_bytes,
        state_dir=(options.state_dir or default_directory(site)).expanduser().resolve(),
        identity=NodeIdentity(
            name=options.name.strip() or "kvasir-worker",
            region=checked_region(options.region),
            invite=options.invite,
            token=read_token(options.token, options.token_file),
        ),
        relay_url=checked_url(options.relay) if options.relay else "",
        kernel=_kernel_choice(options),
        json=options.json,
    )


def _kernel_choice(options: argparse.Namespace) -> KernelChoice:
    """Raise ConfigError for a GPU memory size without a GPU to bound."""
    if options.gpu_memory is None:
        return KernelChoice(options.kernel, options.threads, Backend(options.backend))
    if options.backend == CPU.kind:
        raise ConfigError(f"--gpu-memory {options.gpu_memory} needs --backend gpu or --backend auto")
    return KernelChoice(options.kernel, options.threads, Backend(options.backend, parse_size(options.gpu_memory)))


def read_token(token: str | None, path: Path | None) -> str:
    """Return the token, from the command line or a file. Raises ConfigError, which never shows the file's content."""
    if path is None:
        return token or ""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path} cannot be read: {type(error).__name__}") from error
    if len(words) != 1:
        raise ConfigError(f"--token-file {path} has {len(words)} words; it must hold one token")
    return words[0]


def parse_address(text: str) -> tuple[str, int]:
    """Split HOST:PORT, an IPv6 host in brackets; port 0 lets the system choose. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ConfigError(f"--listen {text!r} is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:7070")
    return host.removeprefix("[").removesuffix("]"), int(port)


def checked_site(url: str) -> str:
    """Return a site's address without a slash at its end. Raises ConfigError unless it is http(s) without secrets."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"site address {url!r} must be an http or https address, such as https://kvasir.example.org")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ConfigError("a site address must have no user, password, query or fragment")
    return url.rstrip("/")


def checked_region(text: str) -> str:
    """Return a region's name, stripped. Raises ConfigError when it is longer than a site accepts."""
    region = text.strip()
    if len(region) > LONGEST_REGION:
        raise ConfigError(
            f"--region {region[:60]!r} has {len(region)} characters; at most {LONGEST_REGION} are allowed"
        )
    return region


def default_directory(site: str) -> Path:
    """Return the state directory of a worker of this site: under the user's state directory."""
    root = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(root) / "kvasir" / re.sub(r"[^A-Za-z0-9.-]", "_", urlsplit(site).netloc)


def _check_between(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{option} is {value}; it must be from {least} to {most}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvasir-worker",
        description="Compute experts of a mixture-of-experts model for backbones.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a slice over TCP",
        description="Serve a slice over TCP.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument(
        "--listen",
        default="127.0.0.1:7070",
        metavar="HOST:PORT",
        help="address to listen on (default %(default)s; with port 0 the system chooses one, which is printed)",
    )
    _add_options(serve, is_slice_needed=True)
    _add_join(commands)
    return parser


def _add_join(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    join = commands.add_parser(
        "join",
        help="work for a site within a budget, or serve a slice through a relay",
        description="With --budget: register at a site, download the experts that it assigns, and serve them. With "
        "--slice: serve that slice to the backbones of a relay. Either way the worker opens all connections itself.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    join.add_argument(
        "url",
        metavar="URL",
        help="the site, such as https://kvasir.example.org; or the relay, such as wss://relay.example.org/relay",
    )
    join.add_argument("--budget", metavar="SIZE", help="memory that this worker may use, such as 2GiB or 500MB")
    join.add_argument(
        "--invite", default="", metavar="CODE", help="invitation code, if the site registers nodes by invitation only"
    )
    join.add_argument("--name", default="kvasir-worker", metavar="NAME", help="name of this node on the site")
    join.add_argument(
        "--region", default="", metavar="WORDS", help="region of this worker, if the site's dashboard should show it"
    )
    join.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="where to keep token and slices (default: under ~/.local/state)"
    )
    join.add_argument("--relay", default="", metavar="URL", help="relay to use instead of the one that the site names")
    tokens = join.add_mutually_exclusive_group()
    tokens.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds this node's token")
    tokens.add_argument("--token", metavar="TOKEN", help="the token itself; other users of this machine may see it")
    _add_options(join, is_slice_needed=False)


def _add_options(serve: argparse.ArgumentParser, *, is_slice_needed: bool) -> None:
    serve.add_argument(
        "--slice", type=Path, required=is_slice_needed, metavar="FILE", help="the slice, cut by `kvasir slice`"
    )
    serve.add_argument("--threads", type=int, metavar="N", help="threads that compute (default: one per core)")
    serve.add_argument(
        "--kernel",
        choices=KERNELS,
        default="auto",
        help="kx1: exact integers; float: dequantised; auto (default): kx1 if it can compute the slice, else float",
    )
    serve.add_argument(
        "--backend",
        choices=BACKENDS,
        default="cpu",
        help="cpu (default); gpu (pip install kvasir[gpu]); auto: a GPU if there is one, for calls where it is faster",
    )
    serve.add_argument(
        "--gpu-memory", metavar="SIZE", help="GPU memory for experts, such as 4GiB (default: what the slice needs)"
    )
    serve.add_argument(
        "--max-clients", type=int, default=8, metavar="N", help="backbones at the same time (default %(default)s)"
    )
    serve.add_argument(
        "--max-inflight-mb",
        type=int,
        default=64,
        metavar="N",
        help="MiB of requests and answers under way for each backbone (default %(default)s)",
    )
    serve.add_argument("--json", action="store_true", help="print events on standard output, one JSON line each")
