"""Finds the host server of this user, or starts one that lingers: what each command does before it asks.

Runs in the command. The server is a process of its own that shares nothing with the command: no descriptor, terminal,
session or process group, so neither `kubectl exec` nor `ssh` waits for it. Finding one costs 3 ms, starting one 0.5 s.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from time import monotonic, sleep

from probe_agent.errors import BadRequest, NoAnswer

from .location import Running, find, host_socket, locked, release, usable_folder

__all__ = ["ensure_server", "stop_server"]

#: How long a server lingers without a client.
LINGER_S = 600.0
#: How long a server may take to start on a busy host, and to end.
_START_S, _END_S = 30.0, 5.0
_MAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")


def ensure_server() -> str:
    """Return the socket of this user's host server, after starting one where none of this build runs. Raises NoAnswer,
    Forbidden or BadRequest."""
    found = find()
    if found is not None and found.fits:
        return found.path
    folder = usable_folder()
    with locked(folder):
        found = find()
        if found is not None and found.fits:
            return found.path  # another command was faster
        if found is not None:
            release(found.path)
        return _start(host_socket(folder))


def stop_server() -> Running | None:
    """End this user's host server, whatever it does, and return what it was; None where none runs."""
    found = find()
    if found is None:
        return None
    try:
        os.kill(found.pid, signal.SIGTERM)
    except ProcessLookupError:
        return found
    except PermissionError as refusal:
        raise BadRequest(f"cannot end the host server (pid {found.pid}): {refusal.strerror}", "run as root") from None
    ends = monotonic() + _END_S
    while os.path.exists(f"/proc/{found.pid}") and monotonic() < ends:
        again = find()
        if again is None or again.pid != found.pid:
            break
        sleep(0.02)
    return found


def _linger_s() -> float:
    text = os.environ.get("PROBE_LINGER", "")
    if not text:
        return 0.0 if _would_be_adopted_by_a_job() else LINGER_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise BadRequest(f"invalid PROBE_LINGER={text}", "use seconds, such as 600, or 0 to end with the command")
    return seconds


def _would_be_adopted_by_a_job() -> bool:
    """Return whether process 1, which inherits processes whose parent has ended, is a Python program, as in a container
    that runs nothing but the job: it must not find a child that it has never started."""
    try:
        with open("/proc/1/cmdline", "rb") as file:
            program = file.read(4096).split(b"\0")[0]
    except OSError:
        return False
    return os.path.basename(program).startswith((b"python", b"torchrun"))


def _start(path: str) -> str:
    linger_s = _linger_s()
    log_path = path.removesuffix("sock") + "log"
    ready, tell = os.pipe()
    try:
        with open(os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as log:
            server = subprocess.Popen(
                [sys.executable, _MAIN, "--socket", path, "--linger", f"{linger_s:g}", "--ready", str(tell)],
                stdin=subprocess.DEVNULL if linger_s else subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                env={name: value for name, value in os.environ.items() if not name.startswith("PROBE")},
                start_new_session=True,
                pass_fds=(tell,),
            )
    except OSError as failure:
        os.close(ready)
        raise NoAnswer(
            f"cannot start a host server: {failure.strerror}", "free memory or processes, or raise their limit"
        ) from None
    finally:
        os.close(tell)
    try:
        _wait_until_ready(server, ready, log_path)
    finally:
        os.close(ready)
    if not linger_s:
        atexit.register(_end_with_us, server)
    return path


def _wait_until_ready(server: subprocess.Popen[bytes], ready: int, log_path: str) -> None:
    is_told, _, _ = select.select([ready], [], [], _START_S)
    if not is_told:
        server.kill()
        server.wait()
        raise NoAnswer(f"the host server did not start within {_START_S:.0f} s", f"read {log_path}; try again")
    if not os.read(ready, 1):
        server.wait()
        raise NoAnswer(f"the host server did not start: {_last_line(log_path)}", f"read {log_path}")


def _last_line(log_path: str) -> str:
    with suppress(OSError), open(log_path, errors="replace") as file:
        lines = file.read()[-4096:].strip().splitlines()
        if lines:
            return lines[-1].removeprefix("probe: ")
    return "it has said nothing"


def _end_with_us(server: subprocess.Popen[bytes]) -> None:
    """End a server that does not linger. It ends without us too: its stdin is closed with this process."""
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(_END_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
