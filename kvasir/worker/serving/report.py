"""A serving worker's events on standard output: sentences for people, or one JSON line per event.

`__main__` prints them. The event "listening" means that backbones can connect, and has the actual port; programs that
start workers wait for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import groupby

from kvasir.worker.serving.config import MIB, WorkerConfig
from kvasir.worker.serving.holdings import Holdings
from kvasir.worker.serving.kernel_choice import kernel_facts

BASE_BYTES = 48 * MIB  # the program: interpreter, numpy, libraries, small buffers (44 MiB measured)


@dataclass(frozen=True, slots=True)
class Listening:
    """The facts of a worker that is ready: slice, kernel, address and memory."""

    host: str
    port: int
    slice: str
    model: str
    model_fingerprint: str
    ranges: list[tuple[int, int, int]]
    n_experts: int
    slice_bytes: int
    kernel: str
    kernel_fingerprint: str
    isa: str
    threads: int
    kernel_bytes: int
    memory_bytes: int
    memory_bytes_most: int

    @classmethod
    def of(cls, config: WorkerConfig, holdings: Holdings, host: str, port: int) -> Listening:
        """Collect the facts of a worker that listens on `host`:`port`."""
        facts = kernel_facts(holdings.kernel, config.kernel.n_threads)
        idle = holdings.slice_bytes + BASE_BYTES + facts.kept_bytes
        return cls(
            host=host,
            port=port,
            slice=str(config.slice_path),
            model=holdings.model_name,
            model_fingerprint=holdings.model_fingerprint,
            ranges=[(item.layer, item.start, item.stop) for item in holdings.ranges],
            n_experts=holdings.n_experts,
            slice_bytes=holdings.slice_bytes,
            kernel=holdings.kernel.name,
            kernel_fingerprint=holdings.kernel.fingerprint,
            isa=facts.build,
            threads=facts.n_threads,
            kernel_bytes=facts.kept_bytes,
            memory_bytes=idle,
            memory_bytes_most=idle + config.limits.max_clients * config.limits.max_inflight_bytes,
        )

    def as_json(self) -> str:
        """Return the event as one line for programs."""
        return json.dumps({"event": "listening", **asdict(self)})

    def as_text(self) -> str:
        """Return the facts as a few lines for people."""
        return "\n".join(
            (
                f"slice    {self.slice}: {self.n_experts} experts of {self.model}, {self.slice_bytes / MIB:.1f} MiB",
                f"         {ranges_text(self.ranges)}",
                f"model    {self.model_fingerprint}",
                f"kernel   {self.kernel} ({self.isa}), {self.threads} threads, {self.kernel_fingerprint}",
                f"memory   up to {self.memory_bytes / MIB:.0f} MiB: the slice's pages, {BASE_BYTES // MIB} MiB for the "
                f"program, {self.kernel_bytes // MIB} MiB that the kernel may keep",
                f"         up to {self.memory_bytes_most / MIB:.0f} MiB with all backbones busy",
                f"listening on {self.host}:{self.port}",
            )
        )


def ranges_text(ranges: list[tuple[int, int, int]]) -> str:
    """Describe expert ranges briefly: neighbouring layers with the same ranges are grouped."""
    by_layer = [
        (layer, tuple((start, stop) for _, start, stop in held)) for layer, held in groupby(ranges, lambda r: r[0])
    ]
    groups: list[list[tuple[int, tuple[tuple[int, int], ...]]]] = []
    for layer, held in by_layer:
        if groups and groups[-1][-1][1] == held and groups[-1][-1][0] + 1 == layer:
            groups[-1].append((layer, held))
        else:
            groups.append([(layer, held)])
    return ", ".join(_group_text(group[0][0], group[-1][0], group[0][1]) for group in groups)


def _group_text(first: int, last: int, held: tuple[tuple[int, int], ...]) -> str:
    layers = f"layer {first}" if first == last else f"layers {first} to {last}"
    return f"{layers}: experts " + " and ".join(f"{start} to {stop - 1}" for start, stop in held)


def joined_json(url: str, holdings: Holdings) -> str:
    """Return the event of a worker that a relay has accepted; it repeats after each reconnection."""
    facts = {"relay": url, "model": holdings.model_name, "n_experts": holdings.n_experts}
    return json.dumps({"event": "joined", **facts, "kernel": holdings.kernel.name})


def joined_text(url: str, holdings: Holdings) -> str:
    """Return the same as a sentence for people."""
    return f"joined {url} with {holdings.n_experts} experts of {holdings.model_name}, kernel {holdings.kernel.name}"


def stopped_json(reason: str) -> str:
    """Return the last event of a worker that stops in order."""
    return json.dumps({"event": "stopped", "reason": reason})
