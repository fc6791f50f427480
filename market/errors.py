"""The error that a client of the market receives. Raised in all of `market`, answered by `market.api`.

Messages name the wrong value and the allowed ones; they never hold a secret.
"""

from __future__ import annotations

from kvasir.errors import KvasirError


class MarketError(KvasirError):
    """A refusal: an HTTP status, a code for programs, a message for people; `retry_after_s` becomes Retry-After."""

    def __init__(self, status: int, code: str, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retry_after_s = retry_after_s
