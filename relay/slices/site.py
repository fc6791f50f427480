"""The slice server of this process, made from Django's settings. `kvasir_site.asgi` mounts it in front of the pages.

Importing it opens nothing: the model is opened at the first request.
"""

from __future__ import annotations

import time

from django.conf import settings

from market.nodes import tokens
from relay.slices.limits import DownloadBook, SliceLimits
from relay.slices.manifests import DigestBook
from relay.slices.planning import SliceShelf
from relay.slices.rates import AddressRates
from relay.slices.server import Application, SliceParts, SliceServer
from relay.sql_thread import SqlThread


def with_slices(pages: Application) -> SliceServer:
    """Return `pages` with /api/slices and /api/manifests in front of them."""
    sql = SqlThread()

    async def check_token(text: str) -> tokens.TokenHolder:
        return await sql.call(tokens.check, text, tokens.TokenScope.WORKER)

    limits = SliceLimits(
        downloads_per_node=settings.KVASIR_SLICE_DOWNLOADS,
        downloads=settings.KVASIR_SLICE_DOWNLOADS_ALL,
        bytes_per_s=settings.KVASIR_SLICE_BYTES_PER_S,
    )
    parts = SliceParts(
        shelf=SliceShelf(settings.KVASIR_SERVICE.model),
        digests=DigestBook(settings.RUN_DIR / "manifests"),
        book=DownloadBook(limits, time.monotonic),
        check_token=check_token,
        origin_url=settings.KVASIR_ORIGIN_URL,
        wait_of=AddressRates().wait_s,
    )
    return SliceServer(pages, parts)
