"""A small hub on this machine: model listings, and files behind a redirect to another host, as the client needs them.

Used by the hub tests. It can misbehave on purpose: cut connections, answer errors, ignore ranges, send other bytes.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import unquote, urlsplit

REPO = "someone/tiny-GGUF"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class HubState:
    """What the hub holds and how it misbehaves; tests change it while the servers run."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: list[int] = field(default_factory=list)  # bytes to send of each of the next downloads, then hang up
    statuses: list[int] = field(default_factory=list)  # error answers to the next downloads
    knows_ranges: bool = True
    content_range: str | None = None
    sent_instead: dict[str, bytes] = field(default_factory=dict)
    listing_status: int = 200
    listing_error_code: str | None = None
    listing: dict[str, object] | None = None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # (server, path, headers)

    def paths(self, server: str) -> list[str]:
        """The paths that one of the two servers was asked for."""
        return [path for asked, path, _ in self.requests if asked == server]

    def describe(self) -> dict[str, object]:
        """The listing as `/api/models/...?blobs=true` answers."""
        siblings = [
            {
                "rfilename": name,
                "size": len(data),
                "blobId": "0" * 40,
                "lfs": {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134},
            }
            for name, data in self.files.items()
        ]
        readme = {"rfilename": "README.md", "size": 10, "blobId": "1" * 40}
        return {"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": [readme, *siblings], "tags": []}


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    server_name: str
    storage: str

    def log_message(self, *args: object) -> None:
        """Tests keep quiet."""

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.state.requests.append((self.server_name, path, dict(self.headers)))
        if self.server_name == "storage":
            self._send_file(path.removeprefix("/"))
        elif path == f"/api/models/{REPO}/revision/main" and "blobs=true" in self.path.lower():
            self._send_listing()
        elif path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
            self._redirect(path.removeprefix(f"/{REPO}/resolve/{COMMIT}/"))
        elif path.startswith(f"/api/models/{REPO}/"):
            self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            self._answer(401, {"X-Error-Code": "RepoNotFound"})

    def _send_listing(self) -> None:
        if self.state.listing_status != 200:
            headers = {"X-Error-Code": self.state.listing_error_code} if self.state.listing_error_code else {}
            self._answer(self.state.listing_status, headers)
            return
        listing = self.state.listing if self.state.listing is not None else self.state.describe()
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())

    def _redirect(self, name: str) -> None:
        data = self.state.files[name]
        self._answer(
            302,
            {
                "Location": f"{self.storage}/{name}",
                "X-Repo-Commit": COMMIT,
                "X-Linked-Size": str(len(data)),
                "X-Linked-ETag": f'"{hashlib.sha256(data).hexdigest()}"',
            },
        )

    def _send_file(self, name: str) -> None:
        if self.state.statuses:
            self._answer(self.state.statuses.pop(0), {})
            return
        data = self.state.sent_instead.get(name, self.state.files[name])
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.state.knows_ranges else 0
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Content-Length": str(len(data) - start)}
        if start:
            headers["Content-Range"] = self.state.content_range or f"bytes {start}-{len(data) - 1}/{len(data)}"
        n_sent = self.state.cut_after.pop(0) if self.state.cut_after else len(data)
        self._answer(206 if start else 200, headers, data[start : start + n_sent])
        self.close_connection = True

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(ConnectionError):  # a client may hang up when it has seen enough
            self.wfile.write(body)


@contextmanager
def serve_hub() -> Iterator[tuple[str, HubState]]:
    """The hub's address and its state; a second server is the storage that files are redirected to."""
    state = HubState()
    storage = _start(state, "storage", "")
    hub = _start(state, "hub", storage.address)
    try:
        yield hub.address, state
    finally:
        for running in (hub, storage):
            running.server.shutdown()
            running.server.server_close()
            running.thread.join()


def _start(state: HubState, name: str, storage: str) -> SimpleNamespace:
    handler = type("Handler", (_Handler,), {"state": state, "server_name": name, "storage": storage})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    return SimpleNamespace(server=server, thread=thread, address=f"http://127.0.0.1:{server.server_port}")
