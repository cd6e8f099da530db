"""Who listens on a loopback port of this host, as the kernel says.

Runs in the CLI: 0.1 ms. The kernel is asked for the listeners of the port alone (sock_diag, as `ss` does). Where it
cannot be, its list of all sockets is read, which takes 12 ms even where there are few.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Iterator

__all__ = ["users_listening"]

Listener = tuple[bytes, int, int]  # address, port, user

_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_IN_LISTEN = 1 << 10
#: struct nlmsghdr, then of inet_diag_req_v2 family, protocol, two that are not needed, states; of the socket its port.
_QUESTION = struct.Struct("=IHHIIBBBBI")
_PORT = struct.Struct(">H46x")
_HEADER = struct.Struct("=IHHII")
_ERROR, _DONE = 2, 3
#: Of inet_diag_msg: the port and the address, and far behind them the user.
_SOCKET, _USER, _USER_AT = struct.Struct(">4xH2x16s"), struct.Struct("=I"), 64
#: Address and port, state (0A: it listens), two columns of numbers, the user.
_LINE = re.compile(rb"^ *\d+: ([0-9A-F]+):([0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +(\d+) ", re.MULTILINE)


def users_listening(port: int) -> set[int]:
    """Whose sockets listen on this port on loopback, or on every address, now."""
    try:
        found = [listener for family in (socket.AF_INET, socket.AF_INET6) for listener in _asked(family, port)]
    except OSError:  # not with this kernel, or not in this container
        found = list(_listed())
    return {user for address, at, user in found if at == port and _is_reached_from_here(address)}


def _asked(family: int, port: int) -> Iterator[Listener]:
    """Those on `port`. Raises OSError."""
    size = _QUESTION.size + _PORT.size
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.settimeout(1.0)
        question = _QUESTION.pack(size, _BY_FAMILY, _REQUEST_DUMP, 1, 0, family, socket.IPPROTO_TCP, 0, 0, _IN_LISTEN)
        kernel.send(question + _PORT.pack(port))
        while True:
            data = kernel.recv(1 << 16)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind == _DONE:
                    return
                if kind == _ERROR or length < _HEADER.size:
                    raise OSError("the kernel does not tell")
                at, address = _SOCKET.unpack_from(data, _HEADER.size)
                (user,) = _USER.unpack_from(data, _HEADER.size + _USER_AT)
                yield address[: 4 if family == socket.AF_INET else 16], at, user
                data = data[(length + 3) & ~3 :]


def _listed() -> Iterator[Listener]:
    """All of them."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table, "rb") as file:
                text = file.read()
        except OSError:
            continue  # no such family here
        for address, port, user in _LINE.findall(text):
            # Words with the last byte first.
            words = [bytes.fromhex(address[at : at + 8].decode())[::-1] for at in range(0, len(address), 8)]
            yield b"".join(words), int(port, 16), int(user)


def _is_reached_from_here(address: bytes) -> bool:
    found = ipaddress.ip_address(address)
    found = getattr(found, "ipv4_mapped", None) or found
    return found.is_loopback or found.is_unspecified
