"""The Content-Security-Policy of pages and of workers: everything from this site, no inline script or style.

`kvasir_site.middleware` sets it on pages, `frontend.static_files` on scripts, since a worker obeys the policy that its
own script came with. Both name the relay's address, which an operator may have elsewhere.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from frontend import import_map


def content_policy(host: str, relay_url: str = "") -> str:
    """A page's, for a site at `host` (with port). `relay_url`: where workers dial when it is not the site."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'wasm-unsafe-eval' {import_map.SOURCE}",
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
    """A script's, in case it is a worker's: short, since every module carries it."""
    connect = _sources(host, relay_url)
    return f"default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src {connect}"


def _sources(host: str, relay_url: str) -> str:
    sources = ["'self'", f"ws://{host}", f"wss://{host}"]  # not every browser lets 'self' cover WebSockets
    relay = urlsplit(relay_url)
    if relay.scheme in ("ws", "wss") and relay.netloc and relay.netloc != host:
        sources.append(f"{relay.scheme}://{relay.netloc}")
    return " ".join(sources)
