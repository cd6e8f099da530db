"""What a host server's certificate is checked against, and the certificate that we show it.

Runs in the CLI, for an endpoint that begins with https://: 20 ms to load the system's certificates, once
for all hosts.
"""

from __future__ import annotations

import os
import ssl
from functools import cache

from probe_agent.errors import BadRequest

__all__ = ["verifying"]


def verifying() -> ssl.SSLContext:
    """By the certificates in the file PROBE_CA, or else by those of the system (or SSL_CERT_FILE); our own
    certificate is in PROBE_CLIENT_CERT, its key in PROBE_CLIENT_KEY. Raises BadRequest."""
    return _verifying(*(os.environ.get(name) or None for name in ("PROBE_CA", "PROBE_CLIENT_CERT", "PROBE_CLIENT_KEY")))


@cache
def _verifying(trusted: str | None, own: str | None, key: str | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=trusted)
    except (OSError, ssl.SSLError) as failure:
        raise BadRequest(f"PROBE_CA is {trusted}, which cannot be read: {failure}", "it takes a PEM file") from None
    if own is not None:
        try:
            context.load_cert_chain(own, key)
        except (OSError, ssl.SSLError) as failure:
            raise BadRequest(
                f"PROBE_CLIENT_CERT is {own}, which cannot be used: {failure}",
                "it takes a PEM file; where the key is in another one, name that in PROBE_CLIENT_KEY",
            ) from None
    return context
