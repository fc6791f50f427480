"""An agent's state directory: the node's id, its token and its pieces, kept over restarts.

`agent` loads it at the start and saves it after every change. The token has a file of its own that only its owner may
read. One process at a time uses a directory; the slices in it belong to `slices.store`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from kvasir.errors import ConfigError
from kvasir.experts import ExpertRange
from kvasir.worker.agent.plan_state import Piece, SiteModel
from kvasir.worker.slices.cache import SliceLock

VERSION = 1
TOKEN_SHARE_LEFT = 1 / 3  # of a token's lifetime, when it is exchanged


@dataclass(frozen=True, slots=True)
class SavedState:
    """The content of `state.json`. The token counts from `since` to `expires`, Unix seconds; 0: never."""

    site: str
    node_id: str = ""
    since: float = 0.0
    expires: float = 0.0
    relay_url: str = ""
    model: SiteModel | None = None
    pieces: tuple[Piece, ...] = ()

    def pieces_within(self, room_bytes: int) -> tuple[Piece, ...]:
        """Return the pieces that fit into a budget, in their order; all of them must be fetched again."""
        kept, left = list[Piece](), room_bytes
        for piece in self.pieces:
            if piece.n_bytes <= left:
                kept.append(piece)
                left -= piece.n_bytes
        return tuple(kept)

    def rotate_in_s(self, node_id: str, now: float) -> float:
        """Return the seconds from Unix time `now` until this node's token should be exchanged; infinity for never."""
        if node_id != self.node_id or self.expires <= 0:
            return math.inf
        return self.expires - TOKEN_SHARE_LEFT * (self.expires - self.since) - now


class StateDirectory:
    """The directory of one worker of one site."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.slices = path / "slices"
        self.token_path = path / "token"
        self._state_path = path / "state.json"

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Create the directory and lock it. Raises ConfigError if that fails or another worker has locked it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = SliceLock(self.path / "lock")
            is_free = lock.take()
        except OSError as error:
            raise ConfigError(f"--state-dir {self.path} cannot be used: {error.strerror or error}") from error
        if not is_free:
            raise ConfigError(f"--state-dir {self.path} is in use by another worker; give each its own")
        try:
            yield
        finally:
            lock.release()

    def load(self, site: str) -> SavedState:
        """Return the saved state. Raises ConfigError if it is of another site or cannot be read."""
        try:
            raw = json.loads(self._state_path.read_text(encoding="utf-8"))
            if raw["version"] != VERSION:
                raise ValueError(f"version {raw['version']}")
            saved = SavedState(
                site=str(raw["site"]),
                node_id=str(raw["node_id"]),
                since=float(raw["since"]),
                expires=float(raw["expires"]),
                relay_url=str(raw["relay_url"]),
                model=SiteModel(**raw["model"]) if raw["model"] else None,
                pieces=tuple(_piece(item) for item in raw["pieces"]),
            )
        except FileNotFoundError:
            return SavedState(site)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{self._state_path} cannot be read ({error}); delete it to start over") from error
        if saved.site != site:
            raise ConfigError(f"--state-dir {self.path} belongs to {saved.site}, not to {site}; give each site its own")
        return saved

    def save(self, state: SavedState) -> None:
        """Replace the saved state atomically. Raises ConfigError if it cannot be written."""
        raw = asdict(state) | {"version": VERSION}
        raw["pieces"] = [
            [piece.range.layer, piece.range.start, piece.range.stop, piece.n_bytes, piece.kernel, piece.lease_id]
            for piece in state.pieces
        ]
        self._write(self._state_path, json.dumps(raw, indent=1), 0o644)

    def read_token(self) -> str:
        """Return the token, or "" if there is none. Raises ConfigError if it cannot be read."""
        try:
            return self.token_path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.token_path} cannot be read: {type(error).__name__}") from error

    def save_token(self, token: str) -> None:
        """Save a token, readable by its owner only."""
        self._write(self.token_path, token + "\n", 0o600)

    def _write(self, path: Path, text: str, mode: int) -> None:
        fresh = path.with_name(path.name + ".new")
        try:
            fresh.unlink(missing_ok=True)
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error


def _piece(item: list[object]) -> Piece:
    layer, start, stop, n_bytes, kernel, lease_id = item
    numbers = [int(str(value)) for value in (layer, start, stop, n_bytes)]
    return Piece(ExpertRange(*numbers[:3]), numbers[3], str(kernel), str(lease_id))
