"""The import map of every page: which vendored file a bare module name means.

Browsers take it inline only, so the Content-Security-Policy names its hash. The template tag `import_map` writes it
and `frontend.content_policy` allows it. Workers have no import map: their modules import by relative paths.
"""

from __future__ import annotations

import base64
import hashlib
import json

VENDOR = "/static/kvasir/vendor"
IMPORTS = {
    "preact": f"{VENDOR}/preact/preact.mjs",
    "preact/hooks": f"{VENDOR}/preact/hooks.mjs",
    "htm": f"{VENDOR}/htm/htm.mjs",
    "uplot": f"{VENDOR}/uplot/uPlot.esm.js",
}
TEXT = json.dumps({"imports": IMPORTS}, separators=(",", ":"))
SOURCE = f"'sha256-{base64.b64encode(hashlib.sha256(TEXT.encode()).digest()).decode()}'"
