"""The usage of a body's requests together: tokens, and the `kvasir` object with the swarm's share.

`chat.generation` adds the last event of each request.
"""

from __future__ import annotations

from typing import Any

from backbone.stream.events import Done

SOURCES = ("workers", "hot", "fallback")


class UsageTally:
    """The sum of several requests' usage."""

    def __init__(self) -> None:
        self.n_done = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.row_experts = 0
        self.n_drafted = 0
        self.n_accepted = 0
        self.by_source = dict.fromkeys(SOURCES, 0.0)
        self.requests: list[str] = []
        self.is_flagged = False
        self.flagged_workers: set[str] = set()
        self.unconfirmed: set[str] = set()

    def add(self, request_id: str, done: Done) -> None:
        """Add a finished request."""
        self.n_done += 1
        self.prompt_tokens += done.usage.prompt_tokens
        self.completion_tokens += done.usage.completion_tokens
        self.row_experts += done.kvasir.row_experts
        self.n_drafted += done.kvasir.n_drafted
        self.n_accepted += done.kvasir.n_accepted
        for source in SOURCES:
            self.by_source[source] += getattr(done.kvasir, source) * done.kvasir.row_experts
        self.requests.append(request_id)
        self.is_flagged |= done.kvasir.flagged
        self.flagged_workers.update(done.kvasir.flagged_workers)
        self.unconfirmed.update(done.kvasir.unconfirmed)

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's usage object. `kvasir` adds row-experts, the share of each source (their sum is 1),
        unconfirmed and flagged workers, and the numbers of drafted and accepted tokens.
        """
        n_all = self.row_experts
        shares = {source: n / n_all if n_all else 0.0 for source, n in self.by_source.items()}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "kvasir": {
                "row_experts": n_all,
                **{source: round(share, 6) for source, share in shares.items()},
                "flagged": self.is_flagged,
                "flagged_workers": sorted(self.flagged_workers),
                "unconfirmed": sorted(self.unconfirmed),
                "requests": self.requests,
                "n_drafted": self.n_drafted,
                "n_accepted": self.n_accepted,
            },
        }
