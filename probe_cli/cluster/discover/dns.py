"""`-t dns:trainer.ns.svc:8080`: every address that a name has, as a headless service of Kubernetes has one a pod.

One question to the resolver, for IPv4 and IPv6.
"""

from __future__ import annotations

import ipaddress
import socket

from probe_agent.errors import BadRequest, NoAnswer

__all__ = ["endpoints"]


def endpoints(text: str) -> list[str]:
    """`address:port` for each address. Raises BadRequest, or NoAnswer when the name has none."""
    name, _, port = text.rpartition(":")
    if not name or not (port.isascii() and port.isdigit()):
        raise BadRequest(f"dns:{text}: a name and a port are needed", "as in dns:trainer.namespace.svc:8080")
    try:
        found = socket.getaddrinfo(name, int(port), type=socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError) as failure:
        raise NoAnswer(
            f"dns:{text}: {name} has no address ({getattr(failure, 'strerror', None) or failure})",
            "is the service headless (clusterIP: None), are its pods ready, and are we inside the cluster?",
        ) from failure
    addresses = {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}
    ordered = sorted(addresses, key=lambda address: (address.version, int(address)))
    return [f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}" for address in ordered]
