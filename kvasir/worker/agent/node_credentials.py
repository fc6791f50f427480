"""Who a worker is at a site: its node's id and token. Never logged, never part of an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from kvasir.errors import ConfigError

_TOKEN = re.compile(r"kvs-([0-9a-f]{16})-\S+", re.ASCII)


@dataclass(frozen=True, slots=True)
class NodeCredentials:
    """Who this node is. `expires`: when the token ends, as the site writes moments; empty for never."""

    node_id: str
    token: str = field(repr=False)
    expires: str = ""


def given_credentials(token: str) -> NodeCredentials:
    """The node of a token that an operator gave. Raises ConfigError, which does not show the token."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise ConfigError("the token is not one of a node: it must begin with kvs- and a node's id")
    return NodeCredentials(match[1], token)
