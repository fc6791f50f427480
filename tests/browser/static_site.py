"""Static files of the front end at /static/kvasir/, and pages of the tests at /, without Django.

Used by the tests of kernels in a page: they need no service. It sends the headers that matter there, the site's own:
types of .js, .wasm and .wgsl, and the policy.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from frontend.content_policy import content_policy
from frontend.static_files import TYPES

ROOT = Path(__file__).resolve().parents[2]
PAGES = Path(__file__).parent / "pages"
FOLDERS = {
    "static/kvasir/kernels/wgsl": ROOT / "kvasir/kernels/wgsl",
    "static/kvasir": ROOT / "frontend/static/kvasir",
    "golden": ROOT / "tests/golden",
}


class _Files(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    extensions_map = SimpleHTTPRequestHandler.extensions_map | TYPES | {".bin": "application/octet-stream"}

    def __init__(self, *arguments: object, extra: dict[str, Path]) -> None:
        self._folders = FOLDERS | extra
        super().__init__(*arguments)  # type: ignore[arg-type]

    def translate_path(self, path: str) -> str:
        asked = Path(unquote(urlsplit(path).path).lstrip("/"))
        if ".." in asked.parts:
            return str(PAGES / "refused")
        for name, folder in self._folders.items():
            if asked.is_relative_to(name):
                return str(folder / asked.relative_to(name))
        return str(PAGES / asked)

    def end_headers(self) -> None:
        self.send_header("Content-Security-Policy", content_policy(self.headers.get("Host", "")))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def do_GET(self) -> None:
        if self.path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def static_site(**extra: Path) -> Iterator[str]:
    """The address of a server of these files: `static/kvasir`, `golden`, and a folder for each further name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, extra=extra))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="static site", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
