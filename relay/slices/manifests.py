"""What a manifest request is answered: the digests, how the slice is laid out, and where else its bytes may be had.

`slices.server` sends it. `slice` tells size, entity tag, header and the places of the weights, so that a worker can ask
whether they fit, and fetch and repair any part; `origin` gives the same weights as byte ranges of the model's own files
on another server, in the same order.
"""

from __future__ import annotations

import hashlib
import json
import re
from urllib.parse import quote

from kvasir.slicing.manifest import Manifest
from relay.slices.planning import PlannedSlice

_PART_NAME = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.ASCII)


def manifest_answer(planned: PlannedSlice, manifest: Manifest, origin_url: str) -> bytes:
    """The JSON. `origin_url` is the address of the model's (first) file, or "" when there is none."""
    plan = planned.plan
    experts = ",".join(f"{item.layer}:{item.start}-{item.stop}" for item in plan.ranges)
    content = manifest.content()
    content["slice"] = {
        "url": f"/api/slices/{manifest.model_fingerprint}?experts={quote(experts, safe=':,-')}",
        "etag": planned.etag,
        "bytes": plan.n_bytes,
        "header_bytes": len(plan.header),
        "header_sha256": hashlib.sha256(plan.header).hexdigest(),
        "pieces": [[item.position, item.n_bytes] for item in plan.byte_ranges],
    }
    if origin_url:
        content["origin"] = {
            "url": origin_url,
            "ranges": [[item.offset, item.n_bytes] for item in plan.byte_ranges],
            "urls": part_urls(origin_url, len(plan.parts)),
            "parts": [item.part for item in plan.byte_ranges],
            "part_bytes": [part.n_bytes for part in plan.parts],
        }
    return json.dumps(content, separators=(",", ":")).encode()


def part_urls(origin_url: str, n_parts: int) -> list[str]:
    """Addresses of all files of a model, from that of the first. One that names no part stands for a single file."""
    if n_parts == 1 or not _PART_NAME.search(origin_url):
        return [origin_url] * n_parts
    stem = _PART_NAME.sub("", origin_url)
    return [f"{stem}-{number:05d}-of-{n_parts:05d}.gguf" for number in range(1, n_parts + 1)]
