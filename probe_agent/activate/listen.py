"""Where a host server may listen, and how a target starts one: PROBE_LISTEN.

`listening` is what `probe serve` uses as well, so that both accept and refuse the same in the same words. Runs on the
target's main thread while its interpreter starts, before a thread or a line of the job is there: one bind, and, where
nobody listens yet, two forks and an exec, together some milliseconds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import socket
import stat
import sys

__all__ = ["ListenRefused", "check", "inherited", "listening", "start_server"]

#: The host server's file in the folder of the target that started it; locked as long as the server lives.
SAID = "server.txt"
#: How long a server that targets have started outlives the last target of the host.
LINGER_S = 60
#: By the protocol of systemd: the first socket handed over at an exec.
_FIRST_SOCKET = 3
_TCP = re.compile(r"(?:http://)?(?:\[(?P<v6>[0-9a-fA-F:.%\w]+)\]|(?P<name>[^:/\[\]\s]+)):(?P<port>\d{1,5})/?")
_FORMS = "HOST:PORT, as in 127.0.0.1:8080 or [::1]:8080, or unix:/path"
_HERE = "name an address of this host: 127.0.0.1, or 0.0.0.0 for all of them"
#: What a server that a target starts is told besides its address. Nothing else of ours goes there: it is no target.
_TOLD = ("PROBE_INSECURE", "PROBE_READ_", "PROBE_RUNTIME_DIR", "PROBE_TLS_", "PROBE_TOKEN")
#: Not imported: it is another program.
_SERVER = os.path.join(os.path.abspath(__file__).rpartition("/probe_agent/")[0], "probe_cli", "planned.py")


class ListenRefused(ValueError):
    """An address on which a server must not or cannot listen; `taken` if one listens already."""

    def __init__(self, message: str, hint: str, taken: bool = False) -> None:
        super().__init__(f"{message}; {hint}")
        self.message = message
        self.hint = hint
        self.taken = taken


def check(text: str) -> None:
    """Raise ListenRefused unless `text` is an address that may be listened on."""
    if not text.startswith("unix:/"):
        _address(text)


def listening(text: str) -> socket.socket:
    """A socket that listens on `text`, `host:port` or `unix:/path`. Raises ListenRefused."""
    return _unix(text[len("unix:") :]) if text.startswith("unix:/") else _tcp(text)


def inherited() -> socket.socket | None:
    """The socket that this process was started with, if it was."""
    if os.environ.pop("LISTEN_PID", "") != str(os.getpid()):
        return None
    found = socket.socket(fileno=_FIRST_SOCKET)
    found.set_inheritable(False)
    return found


def start_server(text: str, folder: str) -> None:
    """Have a host server listen on `text` that is neither our child nor bound to our life; nothing if one does.

    What it says goes to a file in `folder`. Raises ListenRefused.
    """
    try:
        listener = listening(text)
    except ListenRefused as refusal:
        if not refusal.taken:
            raise
        if not text.startswith("unix:/"):  # of a TCP port nobody tells whose it is; samplers/host_server.py finds out
            with open(os.open(os.path.join(folder, SAID), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "w") as file:
                file.write(f"{refusal}\n")
        return
    with listener:
        log = os.open(os.path.join(folder, SAID), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(log, fcntl.LOCK_EX)  # held by the open file, which the server inherits
            child = os.fork()
            if not child:
                _become_server(text, listener.fileno(), log)
            try:
                os.waitpid(child, 0)
            except ChildProcessError:
                return  # the job was started with SIGCHLD ignored
        finally:
            os.close(log)


def _become_server(text: str, listener: int, log: int) -> None:
    """In the forked child: leave the job behind, then be another program. Never returns."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        for number in signal.valid_signals():
            if signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        null = os.open(os.devnull, os.O_RDWR)
        # Above the numbers that they are to have, so that none is overwritten before it is read.
        sources = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (null, null, log, listener)]
        for descriptor, source in enumerate(sources):
            os.dup2(source, descriptor)
        os.closerange(_FIRST_SOCKET + 1, os.sysconf("SC_OPEN_MAX"))
        kept = {n: value for n, value in os.environ.items() if not n.startswith("PROBE") or n.startswith(_TOLD)}
        where = ("--unix", text[len("unix:") :]) if text.startswith("unix:/") else ("--listen", text)
        kept.update({"LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid())})
        arguments = [_SERVER, "serve", "--linger", str(LINGER_S), *where]
        of_probe_run = os.environ.get("PROBE_SERVER_PYTHON", "")
        if os.access(of_probe_run, os.X_OK) and of_probe_run != sys.executable:
            # Another environment than the job's: the job's packages are not for it.
            own = {name: value for name, value in kept.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
            os.execve(of_probe_run, [of_probe_run, *arguments], own)
        os.execve(sys.executable, [sys.executable, *arguments], kept)
    except BaseException as error:  # noqa: BLE001  # whatever it is, there must not be two of the job
        os.write(log, f"no host server for PROBE_LISTEN: {error!r}\n".encode())
    finally:
        os._exit(1)


def _address(text: str) -> tuple[int, tuple[object, ...]]:
    """Family and address of `text`."""
    parts = _TCP.fullmatch(text)
    if parts is None or not 0 < int(parts["port"]) < 65536:
        raise ListenRefused(f"cannot listen on {text}", f"it takes {_FORMS}")
    host, port = parts["v6"] or parts["name"], int(parts["port"])
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as failure:
        raise ListenRefused(f"cannot listen on {text}: {failure.strerror}", _HERE) from None
    return found[0][0], found[0][4]


def _tcp(text: str) -> socket.socket:
    family, address = _address(text)
    # asyncio turns Nagle's delay off (40 ms an answer) only where the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(128)  # of two that are bound, this lets one pass
    except OSError as failure:
        listener.close()
        is_taken = failure.errno == errno.EADDRINUSE
        raise ListenRefused(
            f"cannot listen on {text}: {failure.strerror}",
            "is another server there? take another port" if is_taken else _HERE,
            is_taken,
        ) from None
    return listener


def _unix(path: str) -> socket.socket:
    """Only our user can open it. The lock on its folder decides between two who come at once."""
    try:
        folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as failure:
        raise ListenRefused(f"cannot listen on {path}: {failure.strerror}", "name another path") from None
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _clear(path)
        previous = os.umask(0o177)
        try:
            listener.bind(path)
        finally:
            os.umask(previous)
        listener.listen(128)
    except OSError as failure:
        listener.close()
        raise ListenRefused(f"cannot listen on {path}: {failure.strerror}", "name another path") from None
    except ListenRefused:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener


def _clear(path: str) -> None:
    """Take away what a server that was killed has left at `path`. Raises ListenRefused where somebody listens."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise ListenRefused(f"{path} exists and is not a socket", "name another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(0.5)
        try:
            caller.connect(path)
        except OSError:
            os.unlink(path)
            return
    raise ListenRefused(f"a host server listens on {path} already", "use that one, or name another path", taken=True)
