"""Who listens on a port: asked of the kernel, or read from its list."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from probe_cli.client import listeners


@pytest.fixture(params=["asked", "listed"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways; one fails the tests where the kernel cannot be asked."""
    if request.param == "listed":

        def refused(family: int, port: int) -> Iterator[listeners.Listener]:
            raise OSError("refused")

        monkeypatch.setattr(listeners, "_asked", refused)
    else:
        monkeypatch.setattr(listeners, "_listed", lambda: pytest.fail("the kernel could not be asked"))
    return str(request.param)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.3.2.1", "0.0.0.0", "::1", "::"])
def test_whose_socket_listens_is_known_as_long_as_it_does(address: str) -> None:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    try:
        listener.bind((address, 0))
    except OSError:
        pytest.skip("this host has no such address")
    port = listener.getsockname()[1]

    before = listeners.users_listening(port)
    listener.listen()
    then = listeners.users_listening(port)
    listener.close()

    assert (before, then, listeners.users_listening(port)) == (set(), {os.getuid()}, set())


def test_a_connection_and_an_address_of_the_network_are_no_listeners() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as ours:
        assert listeners.users_listening(ours.getsockname()[1]) == set()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        try:
            route.connect(("198.51.100.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this host has no address but loopback")
        own = route.getsockname()[0]
    with socket.create_server((own, 0)) as listener:
        assert listeners.users_listening(listener.getsockname()[1]) == set()
