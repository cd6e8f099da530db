"""The address that a rank publishes, and its remarks."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from probe_agent.recorder.job.address import listening, reachable


@pytest.mark.parametrize(
    ("listens", "towards_store", "address", "note"),
    [
        ("10.0.0.7:8080", "10.0.0.7", "10.0.0.7:8080", ""),
        ("node7:8080", "10.0.0.7", "node7:8080", ""),
        ("https://node7:8080", "10.0.0.7", "https://node7:8080", ""),
        ("[2001:db8::7]:8080", "2001:db8::7", "[2001:db8::7]:8080", ""),
        ("0.0.0.0:8080", "10.0.0.7", "10.0.0.7:8080", "every interface"),
        ("https://0.0.0.0:8080", "10.0.0.7", "https://here:8080", "which certificates contain"),
        ("[::]:8080", "2001:db8::7", "[2001:db8::7]:8080", "every interface"),
        ("0.0.0.0:8080", "127.0.0.1", "here:8080", "name of the host"),
        ("127.0.0.1:8080", "10.0.0.7", "127.0.0.1:8080", "loopback"),
        ("localhost:8080", "10.0.0.7", "localhost:8080", "loopback"),
        (None, "10.0.0.7", None, "no host server"),
    ],
)
def test_the_address_is_one_that_others_can_reach_or_says_that_it_is_not(
    listens: str | None, towards_store: str, address: str | None, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "here")

    told, why = reachable([listens] if listens else [], towards_store)

    assert told == address
    assert note in why
    assert bool(why) == bool(note)


def test_a_living_server_counts_and_a_killed_one_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROBE_LISTEN", raising=False)
    (tmp_path / "server-1.txt").write_text("10.0.0.1:1\n")
    (tmp_path / "server-2.txt").write_text("127.0.0.1:2\n[::]:2\n10.0.0.2:2\n")
    (tmp_path / "4121-77").mkdir()

    with (tmp_path / "server-2.txt").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        held = listening(str(tmp_path))

    assert held == ["10.0.0.2:2", "[::]:2", "127.0.0.1:2"]  # the one that reaches furthest first
    assert listening(str(tmp_path)) == []


def test_the_address_in_the_jobs_environment_counts_until_a_server_publishes_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_LISTEN", "10.0.0.1:8080")
    assert listening(str(tmp_path)) == ["10.0.0.1:8080"]

    monkeypatch.setenv("PROBE_TLS_CERT", "/certificates/node.pem")
    assert listening(str(tmp_path)) == ["https://10.0.0.1:8080"]

    monkeypatch.setenv("PROBE_LISTEN", "unix:/run/probe.sock")
    assert listening(str(tmp_path)) == []
