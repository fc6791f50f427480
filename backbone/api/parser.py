"""The reading of JSON bodies: strict where Python's own reader is not. Called by ninja after the key was checked."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja.parser import Parser

from backbone.api.errors import ApiError

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class StrictParser(Parser):
    """No NaN, no infinity, no name twice, no half of a surrogate pair."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The body's JSON, of whatever type. Raises ApiError."""
        try:
            body: dict[str, Any] = json.loads(request.body, parse_constant=_refuse, object_pairs_hook=_unique)
            if _SURROGATE.search(request.body):
                json.dumps(body, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as error:
            raise ApiError(400, "invalid_json", f"the body is no JSON: {str(error)[:200]}") from error
        return body


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the name {twice[:80]!r} comes twice in one object")
    return values
