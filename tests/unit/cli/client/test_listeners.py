"""The user who accepts connections to an address: asked of the kernel, or read from its list."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from probe_cli.client import listeners


@pytest.fixture(params=["asked", "listed"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways."""
    if request.param == "listed":

        def refused(address: listeners.Address, port: int) -> int:
            raise OSError("refused")

        monkeypatch.setattr(listeners, "_asked", refused)
    return str(request.param)


@pytest.fixture(params=[("127.0.0.1",) * 2, ("127.3.2.1",) * 2, ("0.0.0.0", "127.3.2.1"), ("::1",) * 2, ("::", "::1")])
def bound(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, str]]:
    """A socket, and the address at which it is reached once it listens."""
    with socket.socket(socket.AF_INET6 if ":" in request.param[0] else socket.AF_INET) as listener:
        try:
            listener.bind((request.param[0], 0))
        except OSError:
            pytest.skip("this host has no such address")
        yield listener, request.param[1]


def test_the_owner_of_a_socket_is_known_as_long_as_it_listens(
    bound: tuple[socket.socket, str], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, address = bound
    port = listener.getsockname()[1]

    before = listeners.users_listening(address, port)
    listener.listen()
    with monkeypatch.context() as patched:
        if way == "asked":
            patched.setattr(listeners, "_listed", lambda: pytest.fail("the kernel does not tell"))
        then = listeners.users_listening(address, port)
    listener.close()

    assert (before, then, listeners.users_listening(address, port)) == (set(), {os.getuid()}, set())


def test_a_process_that_is_only_connected_or_listens_elsewhere_does_not_count() -> None:
    with socket.create_server(("127.3.2.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        elsewhere = listeners.users_listening("127.0.0.1", listener.getsockname()[1])
        connected = listeners.users_listening(*ours.getsockname())

    assert (elsewhere, connected) == (set(), set())
