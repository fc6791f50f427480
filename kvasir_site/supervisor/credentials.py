"""Node tokens and an API key for one run of the service on this machine: made at its start, taken back at its end.

Their texts live in memory and in the environment of the children that need them. A run that was ended by force leaves
a list of ids behind, and the next run takes those back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from backbone.api.keys import store as api_keys
from backbone.api.keys.store import KeyScope
from kvasir.errors import ConfigError
from market.nodes import tokens
from market.nodes.tokens import TokenScope


@dataclass(frozen=True, slots=True)
class Credentials:
    """Texts of what was made for this run."""

    worker_tokens: tuple[str, ...] = field(repr=False)
    backbone_token: str = field(repr=False)
    api_key: str = field(repr=False)


@contextmanager
def credentials(n_workers: int, record: Path) -> Iterator[Credentials]:
    """Valid inside the context. `record` holds the ids while they count."""
    _take_back(record)
    workers = [tokens.issue(TokenScope.WORKER, f"worker-{number + 1} of this machine") for number in range(n_workers)]
    backbone = tokens.issue(TokenScope.BACKBONE, "backbone of this machine")
    key = api_keys.issue([KeyScope.GENERATE, KeyScope.METRICS], "demo key")
    token_ids = [token.public_id for token in (*workers, backbone)]
    record.write_text(json.dumps({"tokens": token_ids, "keys": [key.public_id]}))
    try:
        yield Credentials(tuple(token.text for token in workers), backbone.text, key.text)
    finally:
        _take_back(record)


def _take_back(record: Path) -> None:
    """Revoke what the record names; what is not known any more needs no revoking."""
    try:
        ids = json.loads(record.read_text())
        token_ids, key_ids = list(ids["tokens"]), list(ids["keys"])
    except FileNotFoundError:
        return
    except (ValueError, LookupError, TypeError):
        token_ids, key_ids = [], []
    for public_id in token_ids:
        with suppress(ConfigError):
            tokens.revoke(public_id)
    for public_id in key_ids:
        with suppress(ConfigError):
            api_keys.revoke(public_id)
    record.unlink()
