"""Usage of a body's generations together: tokens, and the `kvasir` object that says what the swarm did.

Fed by `api_generation` with the last event of each request.
"""

from __future__ import annotations

from typing import Any

from backbone.events import Done

SOURCES = ("workers", "hot", "fallback")


class UsageTally:
    """Adds up what several requests used."""

    def __init__(self) -> None:
        self.n_done = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.row_experts = 0
        self.by_source = dict.fromkeys(SOURCES, 0.0)

    def add(self, done: Done) -> None:
        """Count a finished request."""
        self.n_done += 1
        self.prompt_tokens += done.usage.prompt_tokens
        self.completion_tokens += done.usage.completion_tokens
        self.row_experts += done.kvasir.row_experts
        for source in SOURCES:
            self.by_source[source] += getattr(done.kvasir, source) * done.kvasir.row_experts

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage object with `kvasir`: row-experts, and the share of each source (together 1)."""
        n_all = self.row_experts
        shares = {source: n / n_all if n_all else 0.0 for source, n in self.by_source.items()}
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "kvasir": {"row_experts": n_all, **{source: round(share, 6) for source, share in shares.items()}},
        }
