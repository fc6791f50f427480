"""The Content-Security-Policy of pages and of workers, and the import map that the policy of pages allows.

Everything comes from this site; inline scripts and styles are refused, but for the import map: browsers accept it only
inline, so the policy has its hash. `kvasir_site.middleware` sets the policy on pages, `frontend.static_files` on
scripts, since a Web Worker obeys the policy of its own script. Both name the relay's address, which may be another
site. Workers have no import map: their modules import by relative paths.
"""

from __future__ import annotations

import base64
import hashlib
import json
from urllib.parse import urlsplit

VENDOR = "/static/kvasir/vendor"
IMPORTS = {
    "preact": f"{VENDOR}/preact/preact.mjs",
    "preact/hooks": f"{VENDOR}/preact/hooks.mjs",
    "htm": f"{VENDOR}/htm/htm.mjs",
    "uplot": f"{VENDOR}/uplot/uPlot.esm.js",
}
IMPORT_MAP = json.dumps({"imports": IMPORTS}, separators=(",", ":"))
_IMPORT_MAP_SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(IMPORT_MAP.encode()).digest()).decode()}'"


def content_policy(host: str, relay_url: str = "") -> str:
    """Return the policy of a page of the site at `host` (with port).

    `relay_url` is the address that workers dial, when it is not the site.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'wasm-unsafe-eval' {_IMPORT_MAP_SOURCE}",
            "style-src 'self'",
            "img-src 'self' data:",  # Pico's icons
            "font-src 'self'",
            f"connect-src {_sources(host, relay_url)}",
            "worker-src 'self'",
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


def worker_policy(host: str, relay_url: str = "") -> str:
    """Return the policy of a script, which may be a worker's. It is short, since every module carries it."""
    connect = _sources(host, relay_url)
    return f"default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src {connect}"


def _sources(host: str, relay_url: str) -> str:
    sources = ["'self'", f"ws://{host}", f"wss://{host}"]  # not every browser lets 'self' cover WebSockets
    relay = urlsplit(relay_url)
    if relay.scheme in ("ws", "wss") and relay.netloc and relay.netloc != host:
        sources.append(f"{relay.scheme}://{relay.netloc}")
    return " ".join(sources)
