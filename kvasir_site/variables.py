"""Every environment variable of the site, declared once: name, group, type, default and meaning.

`settings` reads them all at the start; `manage.py check_settings` prints what is in force. The page on operation has
the same table, which a test compares with this module. A worker on another machine has command-line options instead.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from kvasir.kernels.isa import NATIVE_ISAS, NUMPY
from kvasir_site.environment import (
    Environment,
    Group,
    Parse,
    T,
    Variable,
    http_url,
    names,
    number,
    path,
    secret,
    size,
    whole,
    wholes,
    word_of,
    words,
    yes_or_no,
)

BASE_DIR = Path(__file__).resolve().parent.parent
DEMO_MODEL = BASE_DIR / "models" / "kvasir-demo-moe.q4_k_m.gguf"
MOST_PROCESSES = 64
VARIABLES: list[Variable[Any]] = []

# Former settings, each with what to do instead. The start stops at one of these, so that it is not relied on unnoticed.
BURST = "remove it; how many requests may come at once follows from the rate"
MEASURED = "remove it; the backbone measures what pays"
FIXED = "remove it; the value is fixed"
REMOVED = {
    "KVASIR_KEY_BURST": BURST,
    "KVASIR_ADDRESS_BURST": BURST,
    "KVASIR_REGISTER_BURST": BURST,
    "KVASIR_MARKET_ADDRESS_BURST": BURST,
    "KVASIR_MARKET_ACCOUNT_BURST": BURST,
    "KVASIR_GROUPS": MEASURED,
    "KVASIR_DRAFT_TOKENS": MEASURED,
    "KVASIR_STEP_ROWS": FIXED,
    "KVASIR_TRACE_TOKENS": FIXED,
    "KVASIR_MAX_DEADLINE_S": "set KVASIR_REQUEST_DEADLINE_S, which bounds every request",
    "KVASIR_STALL_S": FIXED,
    "KVASIR_QUEUE_WAIT_S": FIXED,
    "KVASIR_SLICE_DOWNLOADS_ALL": FIXED,
    "KVASIR_FAST_ROWS": "remove it; KVASIR_DENSE=fast needs a CUDA device and makes no copies on a CPU",
    "KVASIR_REDIS_PORT": "remove it; a free port is used, or set REDIS_URL to a server of your own",
    "KVASIR_WORKER_THREADS": "remove it; the cores are shared out",
}


def _declared(name: str, group: Group, parse: Parse[T], default: T, meaning: str, **more: Any) -> Variable[T]:
    variable = Variable(name, group, parse, default, meaning, **more)
    VARIABLES.append(variable)
    return variable


def read_environment(environ: Any = os.environ) -> Environment:
    """Parse all variables. Raises ConfigError for a wrong value and for one that is no longer a setting."""
    return Environment(environ, VARIABLES, REMOVED)


# A table: one entry for each variable.
# fmt: off
MODEL = _declared("KVASIR_MODEL", Group.FIRST, path, DEMO_MODEL,
    "GGUF file that backbones serve and web processes cut slices from", shown_default="the demo model")
PORT = _declared("KVASIR_PORT", Group.FIRST, whole(0, 65_535), 8000,
    "port of the web server of `make run`; 0: any free one")
ALLOWED_HOSTS: Variable[tuple[str, ...]] = _declared(
    "KVASIR_ALLOWED_HOSTS", Group.FIRST, names, ("localhost", "127.0.0.1", "[::1]"),
    "host names that the site answers to, separated by commas", shown_default="loopback names")
SECRET_KEY = _declared("KVASIR_SECRET_KEY", Group.FIRST, secret, "",
    "at least 32 characters, the same for all web processes", is_secret=True, shown_default="a new one at each start")
DATABASE_URL = _declared("DATABASE_URL", Group.FIRST, words, "",
    "`sqlite:///path` or `postgresql://user:password@host:5432/name?sslmode=...`",
    is_secret=True, shown_default="SQLite in the run directory")
REDIS_URL = _declared("REDIS_URL", Group.FIRST, words, "",
    "`redis://` or `rediss://`; `make run` starts a Redis of its own where this is not set", is_secret=True)

MODEL_NAME = _declared("KVASIR_MODEL_NAME", Group.MODEL, words, "", "name for clients", shown_default="the file's name")
CTX = _declared("KVASIR_CTX", Group.MODEL, whole(0, 1 << 24), 0, "tokens of a slot; 0: the model's, at most 4096")
KERNEL = _declared("KVASIR_KERNEL", Group.MODEL, word_of(("auto", "kx1", "float")), "auto", "expert kernel")
DENSE = _declared("KVASIR_DENSE", Group.MODEL, word_of(("kx1", "fast", "float")), "kx1",
    "arithmetic of the dense path; `kx1` is exact")
REPLY = _declared("KVASIR_REPLY", Group.MODEL,
    word_of(("f32", "sum"), {"f16": "set KVASIR_REPLY=sum, which needs fewer bytes, or f32"}), "f32",
    "workers' replies: `f32`, or `sum`: one row of integers for each row, in a quarter of the bytes")
ISA = _declared("KVASIR_ISA", Group.MODEL, word_of((*NATIVE_ISAS, NUMPY)), "",
    "build of the kernel; the bits are the same", shown_default="the best that the CPU has")

SLOTS = _declared("KVASIR_SLOTS", Group.MEMORY, whole(1, 4096), 64, "sequences at once in a backbone")
KV_BYTES = _declared("KVASIR_KV_BYTES", Group.MEMORY, size, None,
    "budget of keys, values and recurrent state, such as `8GiB`; fewer slots where they would take more")
MAX_WAITING = _declared("KVASIR_MAX_WAITING", Group.MEMORY, whole(0, 4096), 64,
    "requests that wait in a backbone for a slot")
HOT_BYTES = _declared("KVASIR_HOT_BYTES", Group.MEMORY, size, 0,
    "bytes, such as `8GiB`, of busy experts that a backbone computes itself while rows travel to the others")
THREADS = _declared("KVASIR_THREADS", Group.MEMORY, whole(0, 4096), 0, "threads of a backbone; 0: all cores")

RELAY_URL = _declared("KVASIR_RELAY_URL", Group.SWARM, words, "",
    "this process's relay as backbones reach it; announced in Redis")
WORKER_RELAY_URL = _declared("KVASIR_WORKER_RELAY_URL", Group.SWARM, words, "",
    "the relay as workers reach it; default: the site's address and `/relay`")
RELAY_ID = _declared("KVASIR_RELAY_ID", Group.SWARM, words, "", "the relay's name in Redis", shown_default="random")
RELAYS: Variable[tuple[str, ...]] = _declared("KVASIR_RELAYS", Group.SWARM, names, (),
    "relays that a backbone dials in place of those announced in Redis")
WORKERS: Variable[tuple[str, ...]] = _declared("KVASIR_WORKERS", Group.SWARM, names, (),
    "workers that a backbone dials by TCP: HOST:PORT, ...")
TOKEN_FILE = _declared("KVASIR_TOKEN_FILE", Group.SWARM, path, None,
    "file with the backbone's node token; with it the backbone dials relays")
TOKEN = _declared("KVASIR_TOKEN", Group.SWARM, words, "", "the token itself, in place of a file", is_secret=True)
WORKER_DEADLINE_S = _declared("KVASIR_WORKER_DEADLINE_S", Group.SWARM, number(0.01, 3600.0), 10.0,
    "seconds after which the backbone computes what a worker has not answered")
ORIGIN_URL = _declared("KVASIR_ORIGIN_URL", Group.SWARM, http_url, "",
    "another place that serves the model's file by ranges")
TARGET_REPLICAS = _declared("KVASIR_TARGET_REPLICAS", Group.SWARM, whole(1, 1000), 2,
    "replicas that every expert should have")
MAX_REPLICAS = _declared("KVASIR_MAX_REPLICAS", Group.SWARM, whole(1, 1000), 8,
    "replicas that the most wanted experts should have")
LEASE_S = _declared("KVASIR_LEASE_S", Group.SWARM, number(0.5, 3600.0), 45.0,
    "seconds without a heartbeat after which a node holds nothing")
VOLUNTEER_LEASE_S = _declared("KVASIR_VOLUNTEER_LEASE_S", Group.SWARM, number(0.5, 3600.0), 60.0,
    "seconds for which a leased range is kept for its node")
RATE_MICROCREDITS = _declared("KVASIR_RATE_MICROCREDITS", Group.SWARM, whole(0, 1_000_000_000), 1000,
    "reward of one row through one expert that is not scarce")

REGISTRATION = _declared("KVASIR_REGISTRATION", Group.TRUST, word_of(("open", "invite", "closed")), "open",
    "who may register a node")
STRICT = _declared("KVASIR_STRICT", Group.TRUST, yes_or_no, False,
    "1: every worker's reply is confirmed before it is used")
PROXY_HOPS = _declared("KVASIR_PROXY_HOPS", Group.TRUST, whole(0, 8), 0,
    "number of your own proxies in front, whose `X-Forwarded-For` counts")
METRICS_OPEN = _declared("KVASIR_METRICS_OPEN", Group.TRUST, yes_or_no, False, "1: `/metrics` needs no key")
PLAYGROUND = _declared("KVASIR_PLAYGROUND", Group.TRUST, word_of(("open", "off")), "open",
    "`off`: visitors get no key for the playground")
NODE_DAYS = _declared("KVASIR_NODE_DAYS", Group.TRUST, whole(1, 3650), 30, "days for which a node's token is valid")
NODES_PER_ACCOUNT = _declared("KVASIR_NODES_PER_ACCOUNT", Group.TRUST, whole(1, 1_000_000), 1000,
    "nodes of one account")
DEBUG = _declared("KVASIR_DEBUG", Group.TRUST, yes_or_no, False, "Django's debug pages; never on a public machine")

REQUEST_DEADLINE_S = _declared("KVASIR_REQUEST_DEADLINE_S", Group.LIMITS, number(1.0, 86_400.0), 600.0,
    "seconds of one API request in a backbone")
STOP_S = _declared("KVASIR_STOP_S", Group.LIMITS, number(0.0, 3600.0), 20.0,
    "seconds in which answers may finish when a backbone stops")
QUEUE_LIMIT = _declared("KVASIR_QUEUE_LIMIT", Group.LIMITS, whole(1, 1_000_000), 256,
    "requests that may wait; more get 503")
BODY_LIMIT = _declared("KVASIR_BODY_LIMIT", Group.LIMITS, whole(1 << 10, 1 << 20), 1 << 20, "bytes of a request body")
KEY_RATE = _declared("KVASIR_KEY_RATE", Group.LIMITS, whole(1, 1_000_000), 600, "requests a minute of one API key")
ADDRESS_RATE = _declared("KVASIR_ADDRESS_RATE", Group.LIMITS, whole(1, 1_000_000), 1200,
    "requests a minute of one address")
PLAYGROUND_RATE = _declared("KVASIR_PLAYGROUND_RATE", Group.LIMITS, whole(1, 1_000_000), 30,
    "requests a minute of one address with visitors' keys")
REGISTER_RATE = _declared("KVASIR_REGISTER_RATE", Group.LIMITS, whole(1, 10_000_000), 10,
    "registrations a minute from one address")
MARKET_ADDRESS_RATE = _declared("KVASIR_MARKET_ADDRESS_RATE", Group.LIMITS, whole(1, 10_000_000), 6000,
    "market requests a minute from one address")
MARKET_ACCOUNT_RATE = _declared("KVASIR_MARKET_ACCOUNT_RATE", Group.LIMITS, whole(1, 10_000_000), 3000,
    "market requests a minute of one account")
LIVE_SOCKETS = _declared("KVASIR_LIVE_SOCKETS", Group.LIMITS, whole(0, 100_000), 500,
    "browsers that may watch the dashboard in each web process")
SLICE_DOWNLOADS = _declared("KVASIR_SLICE_DOWNLOADS", Group.LIMITS, whole(1, 64), 4,
    "slices that one node may fetch at once")
SLICE_BYTES_PER_S = _declared("KVASIR_SLICE_BYTES_PER_S", Group.LIMITS, whole(0, 1 << 40), 0,
    "bytes a second of one download; 0: no limit")

HOST = _declared("KVASIR_HOST", Group.RUN, words, "127.0.0.1", "where the servers of `make run` listen")
LOCAL_WORKERS = _declared("KVASIR_LOCAL_WORKERS", Group.RUN, whole(0, MOST_PROCESSES), 2,
    "workers, each with a budget for its share of the experts")
LOCAL_BACKBONES = _declared("KVASIR_LOCAL_BACKBONES", Group.RUN, whole(1, MOST_PROCESSES), 1, "backbones of `make run`")
RELAY_PORTS: Variable[tuple[int, ...]] = _declared("KVASIR_RELAY_PORTS", Group.RUN, wholes(1, 65_535), (),
    "ports of relay processes beside the web server")
ONCE = _declared("KVASIR_ONCE", Group.RUN, yes_or_no, False, "1: `make run` ends after the sample")
RUN_DIR = _declared("KVASIR_RUN_DIR", Group.RUN, path, BASE_DIR / "run",
    "files that runs leave behind; one service at a time", shown_default="run/")

SPECULATE = _declared("KVASIR_SPECULATE", Group.EXPERIMENTS, word_of(("off", "auto")), "off",
    "`auto`: computes drafts of the next tokens ahead where that pays; no bit of an answer changes")
DEVICE = _declared("KVASIR_DEVICE", Group.EXPERIMENTS, word_of(("cpu", "cuda", "auto")), "cpu",
    "where the dense path computes; `cuda` is not exact")
GPU_EXPERT_BYTES = _declared("KVASIR_GPU_EXPERT_BYTES", Group.EXPERIMENTS, size, 0,
    "GPU memory, such as `20GiB`, for experts that the backbone computes itself")
SOFTWARE_GPU = _declared("KVASIR_SOFTWARE_GPU", Group.EXPERIMENTS, yes_or_no, False,
    "1: a worker's `--backend gpu` accepts a GPU that the CPU emulates")
# fmt: on
