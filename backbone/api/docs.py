"""/v1/docs: the API's browsable page, from files of the installed ninja package, under a strict content policy.

`kvasir_site.urls` mounts it. It needs no internet, no static file server and no inline script.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotModified
from django.views.decorators.http import require_safe

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Mapping[str, str] = {
    "swagger-ui-bundle.js": "text/javascript; charset=utf-8",
    "swagger-ui.css": "text/css; charset=utf-8",
    "favicon.svg": "image/svg+xml",
    "start.js": "text/javascript; charset=utf-8",
}
_START = """\
SwaggerUIBundle({
  url: "/v1/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
});
"""
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Kvasir API</title>
<link rel="icon" type="image/svg+xml" href="/v1/docs/favicon.svg">
<link rel="stylesheet" href="/v1/docs/swagger-ui.css">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/v1/docs/swagger-ui-bundle.js"></script>
<script src="/v1/docs/start.js"></script>
</body>
</html>
"""


@require_safe
def page(_request: HttpRequest) -> HttpResponse:
    """Return the page."""
    response = HttpResponse(_PAGE)
    response["Content-Security-Policy"] = _POLICY
    response["Cache-Control"] = "no-cache"
    return response


@require_safe
def file(request: HttpRequest, name: str) -> HttpResponse:
    """Return one of the page's files."""
    if name not in _TYPES:
        raise Http404(f"the API's page has no file {name!r}")
    data, tag = _read(name)
    if request.headers.get("If-None-Match") == tag:
        return HttpResponseNotModified()
    response = HttpResponse(data, content_type=_TYPES[name])
    response["ETag"] = tag
    response["Cache-Control"] = "no-cache"
    response["X-Content-Type-Options"] = "nosniff"
    return response


@lru_cache(maxsize=len(_TYPES))
def _read(name: str) -> tuple[bytes, str]:
    if name == "start.js":
        data = _START.encode()
    else:
        data = (resources.files("ninja") / "static" / "ninja" / name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:32]}"'
