"""The sample generation of `manage.py up`: asked for through the public API like any client, read as it streams."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from kvasir.errors import KvasirError

READ_DEADLINE_S = 60.0  # between two pieces
LOOK_EVERY_S = 0.2
LOOK_DEADLINE_S = 5.0
_WORKERS = re.compile(r"^kvasir_backbone_workers\{.*\} (\S+)$", re.MULTILINE)


class SampleFailed(KvasirError):
    """The API did not answer the sample as it must."""


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """The text to generate; `sampling` has the API's names, which are also those of `SamplingParams`."""

    model: str
    prompt: str
    sampling: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """The text after the prompt, and who computed its row-experts (shares from 0 to 1)."""

    text: str
    n_tokens: int
    n_row_experts: int
    share_workers: float
    share_hot: float
    share_fallback: float

    @property
    def is_by_workers(self) -> bool:
        """Return whether workers computed every row-expert."""
        return self.n_row_experts > 0 and self.share_hot == 0 and self.share_fallback == 0

    def shares(self) -> str:
        """For people."""
        return (
            f"{self.n_row_experts} row-experts by workers {self.share_workers:.1%}, "
            f"hot cache {self.share_hot:.1%}, backbone's own replica {self.share_fallback:.1%}"
        )


def served_model(base_url: str, key: str) -> str:
    """The name of the first model that the API lists. Raises SampleFailed."""
    try:
        reply = httpx.get(f"{base_url}/v1/models", headers=_headers(key), timeout=READ_DEADLINE_S, trust_env=False)
        reply.raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise SampleFailed(f"the API lists no model: {type(error).__name__}: {error}") from error


def wait_for_workers(base_url: str, key: str, n_workers: int, deadline_s: float) -> None:
    """Wait until a backbone reports that this number of tested workers may serve. Raises SampleFailed after the
    deadline."""
    until = time.monotonic() + deadline_s
    while (n_found := _workers_now(base_url, key)) < n_workers:
        if time.monotonic() >= until:
            raise SampleFailed(f"{n_found} of {n_workers} workers reached the backbone within {deadline_s:g} s")
        time.sleep(LOOK_EVERY_S)


def _workers_now(base_url: str, key: str) -> int:
    """Return the largest number of any backbone; 0 while none answers."""
    try:
        reply = httpx.get(f"{base_url}/metrics", headers=_headers(key), timeout=LOOK_DEADLINE_S, trust_env=False)
    except httpx.HTTPError:
        return 0
    return max((int(float(found)) for found in _WORKERS.findall(reply.text)), default=0)


def write_sample(base_url: str, key: str, request: SampleRequest, on_text: Callable[[str], None]) -> Sample:
    """Generate, giving each piece of text to `on_text` as it comes. Raises SampleFailed."""
    body = {
        "model": request.model,
        "prompt": request.prompt,
        **request.sampling,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    try:
        for chunk in _chunks(f"{base_url}/v1/completions", key, body):
            for choice in chunk["choices"]:
                pieces.append(choice["text"])
                on_text(choice["text"])
            usage = chunk.get("usage") or usage
        swarm = usage["kvasir"]
        return Sample(
            text="".join(pieces),
            n_tokens=usage["completion_tokens"],
            n_row_experts=swarm["row_experts"],
            share_workers=swarm["workers"],
            share_hot=swarm["hot"],
            share_fallback=swarm["fallback"],
        )
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise SampleFailed(f"the sample's stream broke: {type(error).__name__}: {error}") from error


def _chunks(url: str, key: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The stream's objects, to [DONE]. Raises SampleFailed for an error event or an early end."""
    timeout = httpx.Timeout(10.0, read=READ_DEADLINE_S)
    with httpx.stream("POST", url, headers=_headers(key), json=body, timeout=timeout, trust_env=False) as reply:
        if reply.status_code != httpx.codes.OK:
            raise SampleFailed(f"the API answered {reply.status_code}: {reply.read().decode(errors='replace')[:500]}")
        for line in reply.iter_lines():
            name, _, value = line.partition(": ")
            if name != "data":
                continue
            if value == "[DONE]":
                return
            chunk = json.loads(value)
            if "error" in chunk:
                raise SampleFailed(f"the stream ended with an error: {chunk['error']}")
            yield chunk
    raise SampleFailed("the stream ended without [DONE]")


def _headers(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
