"""Who listens at an address of this host, as the kernel says.

Runs in the CLI: 0.1 ms. The kernel is asked for the one socket that would take a connection (sock_diag, as `ss` does).
Where it does not tell, its list of all sockets is read, which takes 12 ms even where there are few.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct

__all__ = ["users_listening"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_SOCK_DIAG, _BY_FAMILY, _REQUEST = 4, 20, 1
_IN_LISTEN = 10
#: struct nlmsghdr: length, kind, flags; then of inet_diag_req_v2 family, protocol, states.
_QUESTION = struct.Struct("=IHHIIBBxxI")
#: Of its socket: port and address; nothing of the other end, any interface, any cookie.
_SOCKET = struct.Struct(">Hxx16s16xiii")
#: Behind a header in the answer: the state, and far behind it the user.
_STATE_AT, _USER_AT, _USER = 16 + 1, 16 + 64, struct.Struct("=I")
#: Address and port, state (0A: it listens), two columns of numbers, the user.
_LINE = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +(\d+) ", re.MULTILINE)


def users_listening(address: str, port: int) -> set[int]:
    """Whose sockets may take a connection to this loopback address and port, now."""
    there = ipaddress.ip_address(address)
    try:
        return {_asked(there, port)}
    except OSError:  # nobody, or not with this kernel, or not in this container
        return {user for at, number, user in _listed() if number == port and (at == there or at.is_unspecified)}


def _asked(address: Address, port: int) -> int:
    """The user of the one that takes it. Raises OSError, also when there is none."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    size = _QUESTION.size + _SOCKET.size
    question = _QUESTION.pack(size, _BY_FAMILY, _REQUEST, 1, 0, family, socket.IPPROTO_TCP, 1 << _IN_LISTEN)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        kernel.send(question + _SOCKET.pack(port, address.packed, 0, -1, -1))
        answer = kernel.recv(1 << 12)
    _, kind = struct.unpack_from("=IH", answer)
    if kind != _BY_FAMILY or answer[_STATE_AT] != _IN_LISTEN:
        raise OSError("the kernel does not tell")
    user: int = _USER.unpack_from(answer, _USER_AT)[0]
    return user


def _listed() -> list[tuple[Address, int, int]]:
    """Address, port and user of all."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, "rb") as file:
                text = file.read()
        except OSError:
            continue  # no such family here
        for address, port, user in _LINE.findall(text):
            # Words with the last byte first.
            words = [bytes.fromhex(address[at : at + 8].decode())[::-1] for at in range(0, len(address), 8)]
            at = ipaddress.ip_address(b"".join(words))
            found.append((getattr(at, "ipv4_mapped", None) or at, int(port, 16), int(user)))
    return found
