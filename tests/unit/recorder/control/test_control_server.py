"""The socket server, in this very process."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from probe_agent.recorder.control.reply import Reply
from probe_agent.recorder.control.server import ControlServer


class Served:
    """A server on a thread of its own, and what it reported."""

    def __init__(self, path: str) -> None:
        self.errors: list[tuple[str, BaseException]] = []
        self.ticked = threading.Event()
        self.tick: Callable[[], object] = self.ticked.set
        self.released = threading.Event()
        self.server = ControlServer(
            path,
            {
                "echo": self._echo,
                "hold": self._hold,
                "fail": self._fail,
                "stop": self._stop,
                "unsendable": lambda q, r: {"x": object()},
            },
            lambda source, error: self.errors.append((source, error)),
        )
        self.path = path
        self.server.listen()
        self.thread = threading.Thread(target=self.server.serve, args=(lambda: self.tick(), 0.02))
        self.thread.start()

    def _echo(self, request: Mapping[str, Any], reply: Reply) -> dict[str, object]:
        reply.send({"note": "first"})
        return {"said": request["say"]}

    def _hold(self, request: Mapping[str, Any], reply: Reply) -> None:
        while not reply.cancelled() and not self.released.wait(0.01):
            pass
        self.released.set()

    def _stop(self, request: Mapping[str, Any], reply: Reply) -> None:
        self.server.keep(reply)
        self.server.stop_serving()

    def _fail(self, request: Mapping[str, Any], reply: Reply) -> None:
        raise LookupError("broken")

    def ask(self, **request: Any) -> list[dict[str, Any]]:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(self.path)
            connection.sendall(json.dumps(request).encode() + b"\n")
            return [json.loads(line) for line in connection.makefile()]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(str(tmp_path / "control.sock"))
    yield served
    served.server.stop_serving()
    served.thread.join(10)
    served.server.close()
    assert not served.thread.is_alive()


def test_an_operation_streams_and_answers(served: Served) -> None:
    assert served.ask(op="echo", say="ü\udc80") == [{"note": "first"}, {"said": "ü\udc80", "done": True}]


def test_a_long_request_delays_neither_others_nor_ticks(served: Served) -> None:
    with socket.socket(socket.AF_UNIX) as held:
        held.connect(served.path)
        held.sendall(b'{"op": "hold"}\n')

        assert served.ask(op="echo", say=1)[-1]["said"] == 1
        served.ticked.clear()
        assert served.ticked.wait(10)

    assert served.released.wait(10)  # hanging up cancels


def test_a_failing_operation_is_told_to_both_sides(served: Served) -> None:
    answer = served.ask(op="fail")[-1]

    assert answer["error"]["message"] == "the recorder failed at fail: LookupError: broken"
    assert [(source, str(error)) for source, error in served.errors] == [("control.fail", "broken")]


def test_a_failing_tick_ends_nothing(served: Served) -> None:
    def fail() -> None:
        served.ticked.set()
        raise LookupError("tick")

    served.ticked.clear()
    served.tick = fail

    assert served.ticked.wait(10)
    assert served.ask(op="echo", say=1)[-1]["said"] == 1


def test_only_the_user_can_reach_the_socket(served: Served) -> None:
    assert stat.S_IMODE(os.stat(served.path).st_mode) == 0o600


def test_a_client_that_leaves_at_once_does_no_harm(served: Served) -> None:
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(served.path)
            connection.sendall(b'{"op": "ec')

    assert served.ask(op="echo", say=1)[-1]["said"] == 1
    assert served.errors == []


def test_stopping_cancels_running_code_and_answers_its_client(tmp_path: Path) -> None:
    served = Served(str(tmp_path / "control.sock"))
    with socket.socket(socket.AF_UNIX) as held, socket.socket(socket.AF_UNIX) as stopping:
        for connection, operation in ((held, b"hold"), (stopping, b"stop")):
            connection.settimeout(10)
            connection.connect(served.path)
            connection.sendall(b'{"op": "%s"}\n' % operation)

        served.thread.join(10)
        served.server.close()
        ended = held.makefile().read()
        (kept,) = served.server.kept()
        kept.send(b"all is over")
        kept.close()

        assert served.released.wait(10)
        assert json.loads(ended) == {"done": True}
        assert stopping.makefile().read() == "all is over"
