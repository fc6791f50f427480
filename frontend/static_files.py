"""/static/: the files of `frontend/static` and of Django's admin, compressed and with an ETag, from any web process.

No collecting, no second server, no hashed names: a browser revalidates each file and gets 304, so it never mixes
modules of two versions. Content types are listed here: browsers refuse modules, WASM and shaders with a wrong one.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.contrib.staticfiles import finders
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.utils.cache import patch_vary_headers
from django.views.decorators.http import require_safe

from frontend.content_policy import worker_policy

TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".wasm": "application/wasm",
    ".wgsl": "text/wgsl; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".webmanifest": "application/manifest+json",
}
SMALLEST_COMPRESSED = 512


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file's bytes; `compressed` is empty if compression saves too little."""

    data: bytes
    compressed: bytes
    tag: str


@require_safe
async def static_file(request: HttpRequest, path: str) -> HttpResponse:
    """Return a file, 304 for a browser that has it, 404 if it does not exist or its type is not listed."""
    found = finders.find(path)
    kind = TYPES.get(Path(path).suffix)
    if not isinstance(found, str) or kind is None or not Path(found).is_file():
        raise Http404(f"there is no static file {path[:200]!r}")
    facts = Path(found).stat()
    file = _read(found, facts.st_mtime_ns, facts.st_size)
    response: HttpResponse
    if request.headers.get("If-None-Match") == file.tag:
        response = HttpResponseNotModified()
    elif file.compressed and "gzip" in request.headers.get("Accept-Encoding", ""):
        response = HttpResponse(file.compressed, content_type=kind)
        response["Content-Encoding"] = "gzip"
    else:
        response = HttpResponse(file.data, content_type=kind)
    response["ETag"] = file.tag
    response["Cache-Control"] = "no-cache"
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = worker_policy(request.get_host(), settings.WORKER_RELAY_URL)
    patch_vary_headers(response, ["Accept-Encoding"])
    return response


@lru_cache(maxsize=1024)
def _read(path: str, _changed_ns: int, _size: int) -> StaticFile:
    """Read each version of a file once: the unused arguments are part of the cache's key."""
    data = Path(path).read_bytes()
    compressed = gzip.compress(data, 9, mtime=0) if len(data) >= SMALLEST_COMPRESSED else b""
    if len(compressed) >= len(data) * 0.95:
        compressed = b""
    return StaticFile(data, compressed, f'"{hashlib.sha256(data).hexdigest()[:32]}"')
