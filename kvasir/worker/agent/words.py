"""The words of an agent: ranges and refusals as sentences for people and as plain values for programs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvasir.byte_sizes import format_size
from kvasir.experts import ExpertRange
from kvasir.worker.agent.market_client import Assigned, MarketRefusedError


def range_text(item: ExpertRange) -> str:
    """One range, as people count: the last expert included."""
    if item.n_experts == 1:
        return f"layer {item.layer}, expert {item.start}"
    return f"layer {item.layer}, experts {item.start} to {item.stop - 1}"


def ranges_facts(ranges: Iterable[ExpertRange]) -> list[list[int]]:
    """Ranges as `segments` have them."""
    return [[item.layer, item.start, item.stop] for item in ranges]


def promised_text(answer: Assigned) -> str:
    """What the market promised."""
    return f"promised: {range_text(answer.range)} of {answer.model.name}, {format_size(answer.n_bytes)}"


def promised_facts(answer: Assigned) -> dict[str, Any]:
    """The same for programs."""
    return {
        "model": answer.model.name,
        "range": ranges_facts([answer.range])[0],
        "bytes": answer.n_bytes,
        "scarcity": answer.scarcity,
        "rate_microcredits_per_row": answer.rate_microcredits,
    }


def refused_words(error: MarketRefusedError, token_path: Path) -> str:
    """What a refusal means and what to do about it."""
    if error.status == 401:
        return (
            f"the site does not take this node's token: {error}. If it has expired or was revoked, delete {token_path} "
            "and start again: the worker then registers as a new node (with --invite CODE where the site wants one)"
        )
    if error.code == "invite_needed":
        return f"the site registers nodes by invitation only: {error}. Ask its operator, then use --invite CODE"
    if error.code == "registration_closed":
        return f"the site registers no nodes: {error}. Ask its operator for a token, then use --token-file FILE"
    return f"the site refuses this worker: {error}"
