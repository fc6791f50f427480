"""What a worker is told on its command line, checked before anything is opened.

`__main__` parses, everything else receives a `WorkerConfig`. A value that cannot be used is a ConfigError that
names the option and the value.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from kvasir.errors import ConfigError
from kvasir.kernels.backend import BACKENDS
from kvasir.relay.directory import checked_url
from kvasir.worker.agent.config import AgentConfig, add_agent_options, agent_config, chosen_backend
from kvasir.worker.serving.config import WorkerConfig

KERNELS = ("auto", "kx1", "float")
LEAST_INFLIGHT_MB = 16  # one request and its answer, each of the largest frame

EXAMPLE = """\
example:
  Cut the first 8 experts of every layer out of a model, then serve them:
    kvasir slice model.gguf --experts "*:0-8" --out slice.gguf
    kvasir-worker serve --slice slice.gguf --listen 127.0.0.1:7070
  or, from behind a router or firewall, through a relay:
    kvasir-worker join wss://relay.example.org/relay --token-file token.txt --slice slice.gguf
  or leave it to a site to say what is needed most:
    kvasir-worker join https://kvasir.example.org --budget 2GiB

The worker computes its experts for every backbone that connects and has the same model and the same kernel.
Stop it with Ctrl-C or SIGTERM: it finishes what it has begun.
"""


def parse_command(arguments: Sequence[str]) -> WorkerConfig | AgentConfig:
    """What these arguments ask for. Raises ConfigError; argparse exits for --help and misuse."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.threads is not None:
        _check_between("--threads", options.threads, 1, 1024)
    if options.command == "join":
        has_token = options.token is not None or options.token_file is not None
        if (options.budget is None) == (options.slice is None):
            parser.error("join needs either --budget SIZE, with a site's address, or --slice FILE, with a relay's")
        if options.budget is not None:
            return agent_config(options, read_token(options.token, options.token_file))
        if not has_token:
            parser.error("--slice needs --token-file or --token: one that the relay's operator gave you")
    return _worker_config(options)


def parse_arguments(arguments: Sequence[str]) -> WorkerConfig:
    """As `parse_command`, for the forms with a slice. Raises ConfigError for the form with a budget too."""
    config = parse_command(arguments)
    if isinstance(config, AgentConfig):
        raise ConfigError("a slice is needed here, not --budget")
    return config


def _worker_config(options: argparse.Namespace) -> WorkerConfig:
    is_joining = options.command == "join"
    host, port = parse_address(options.listen) if not is_joining else ("", 0)
    _check_between("--max-clients", options.max_clients, 1, 1024)
    _check_between("--max-inflight-mb", options.max_inflight_mb, LEAST_INFLIGHT_MB, 4095)
    if not options.slice.is_file():
        raise ConfigError(f"--slice {options.slice}: there is no such file; cut one with `kvasir slice`")
    return WorkerConfig(
        slice_path=options.slice,
        host=host,
        port=port,
        n_threads=options.threads,
        kernel=options.kernel,
        backend=chosen_backend(options),
        max_clients=options.max_clients,
        max_inflight_mb=options.max_inflight_mb,
        json=options.json,
        relay_url=checked_url(options.url) if is_joining else "",
        token=read_token(options.token, options.token_file) if is_joining else "",
    )


def read_token(token: str | None, path: Path | None) -> str:
    """The token, from the command line or a file. Raises ConfigError, which never shows what the file holds."""
    if path is None:
        return token or ""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path} cannot be read: {type(error).__name__}") from error
    if len(words) != 1:
        raise ConfigError(f"--token-file {path} has {len(words)} words, one token is needed")
    return words[0]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, an IPv6 host in brackets; port 0 lets the system choose. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise ConfigError(f"--listen {text!r} is not HOST:PORT with a port from 0 to 65535, such as 127.0.0.1:7070")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _check_between(option: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ConfigError(f"{option} is {value}, {least} to {most} is allowed")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kvasir-worker",
        description="Compute the experts of one slice for backbones.",
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
        help="where to listen (default %(default)s; port 0: the system chooses, the start says which)",
    )
    _add_options(serve, is_slice_needed=True)
    _add_join(commands)
    return parser


def _add_join(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    join = commands.add_parser(
        "join",
        help="work for a site, with a budget; or serve a slice through a relay",
        description="With --budget: do all that a site needs done and that fits. With --slice: serve that slice to the "
        "backbones of a relay. Either way over connections that this worker opens.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    join.add_argument(
        "url",
        metavar="URL",
        help="the site, such as https://kvasir.example.org; or the relay, such as wss://relay.example.org/relay",
    )
    add_agent_options(join)
    tokens = join.add_mutually_exclusive_group()
    tokens.add_argument("--token-file", type=Path, metavar="FILE", help="a file that holds this node's token")
    tokens.add_argument("--token", metavar="TOKEN", help="the token itself; other users of this machine may see it")
    _add_options(join, is_slice_needed=False)


def _add_options(serve: argparse.ArgumentParser, *, is_slice_needed: bool) -> None:
    serve.add_argument(
        "--slice", type=Path, required=is_slice_needed, metavar="FILE", help="the slice, made by `kvasir slice`"
    )
    serve.add_argument("--threads", type=int, metavar="N", help="threads that compute (default: one a core)")
    serve.add_argument(
        "--kernel",
        choices=KERNELS,
        default="auto",
        help="kx1: exact integers; float: dequantised; auto (default): kx1 when it can compute the slice",
    )
    serve.add_argument(
        "--backend",
        choices=BACKENDS,
        default="cpu",
        help="cpu (default); gpu (pip install kvasir[gpu]); auto: a GPU where there is one and where it is faster",
    )
    serve.add_argument(
        "--gpu-memory", metavar="SIZE", help="GPU memory for experts, such as 4GiB (default: what the slice needs)"
    )
    serve.add_argument(
        "--max-clients", type=int, default=8, metavar="N", help="backbones at once (default %(default)s)"
    )
    serve.add_argument(
        "--max-inflight-mb",
        type=int,
        default=64,
        metavar="N",
        help="MiB of requests and answers under way for each backbone (default %(default)s)",
    )
    serve.add_argument("--json", action="store_true", help="say on standard output what happens, one JSON line each")
