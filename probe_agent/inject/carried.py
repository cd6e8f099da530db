"""Modules of the recorder as they are carried: their sources, and the code that the target's Python compiles.

Compiling in the target would hold its GIL for 20 ms, several of them at a stretch; reading code takes 1 ms. So it is
compiled here: by our own Python or, where the target runs another version, by the target's program in a process of
its own. Only the target can say whether the code suits it (it compares magic numbers); otherwise it compiles the
sources after all. Runs in the attaching process, which keeps the result in the user's cache folder.
"""

from __future__ import annotations

import marshal
import os
import re
import stat
import subprocess
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from .threads.tracee import Tracee

__all__ = ["PACKAGE", "pack"]

#: The package name of the recorder in the target.
PACKAGE = "_probe_recorder"
#: The module that loads the others; its source is not packed.
FIRST = PACKAGE + ".importing"
#: Every CPython since 3.4 reads it.
_FORMAT = 2
_OURS = sys.version_info[:2]
#: Other programs that embed Python do not understand `-c`.
_PROGRAM = re.compile(r"python(\d(\.\d+)?)?[td]*")
#: In other namespaces its path may lead to another file, and its user may be another one.
_SPACES = ("mnt", "user")
_COMPILE_S = 5.0
_COMPILE = """
import marshal, sys
from importlib.util import MAGIC_NUMBER
texts = marshal.load(sys.stdin.buffer)
code = {name: marshal.dumps(compile(text, "<probe>/" + name, "exec")) for name, text in texts.items()}
sys.stdout.buffer.write(marshal.dumps((MAGIC_NUMBER, code), 2))
"""

#: A magic number, and the code of each module.
Code = tuple[bytes, dict[str, bytes]]
_NONE: Code = (b"", {})


def pack(process: Tracee, recorder: Path) -> bytes:
    """Return what the loader in the target reads: {name: (is a package, packed source)}, magic number, {name: code},
    and the source of the first."""
    modules = dict(_modules(recorder))
    version = process.python_version or _OURS
    program = None if version == _OURS else _program(process)
    if version != _OURS and program is None:
        return _packed(modules, _NONE)
    kept = _Kept("recorder-{}.{}-".format(*version), repr(modules).encode())
    packed = kept.read()
    if packed is None:
        code = _compile(modules) if program is None else _compile_by(program, modules)
        packed = _packed(modules, code)
        if code is not _NONE:
            kept.write(packed)
    return packed


def _modules(recorder: Path) -> list[tuple[str, tuple[bool, bytes]]]:
    modules = []
    for path in sorted(recorder.rglob("*.py")):
        parts = path.relative_to(recorder).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        modules.append((".".join((PACKAGE, *parts[: -1 if is_package else None])), (is_package, path.read_bytes())))
    return modules


def _packed(modules: Mapping[str, tuple[bool, bytes]], code: Code) -> bytes:
    sources = {name: (is_package, zlib.compress(text, 9)) for name, (is_package, text) in modules.items()}
    return marshal.dumps((sources, *code, modules[FIRST][1]), _FORMAT)


def _compile(modules: Mapping[str, tuple[bool, bytes]]) -> Code:
    return MAGIC_NUMBER, {
        name: marshal.dumps(compile(text, "<probe>/" + name, "exec", dont_inherit=True))
        for name, (_, text) in modules.items()
    }


def _compile_by(program: str, modules: Mapping[str, tuple[bool, bytes]]) -> Code:
    texts = marshal.dumps({name: text for name, (_, text) in modules.items()}, _FORMAT)
    command = [program, "-I", "-S", "-c", _COMPILE]
    try:
        done = subprocess.run(command, input=texts, capture_output=True, timeout=_COMPILE_S, check=True, cwd="/")
        magic, code = marshal.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, EOFError, ValueError, TypeError):
        return _NONE  # the target can do it itself
    return magic, code


def _program(process: Tracee) -> str | None:
    """Return the target's own Python, if we would start the same file as the same user; None otherwise."""
    try:
        is_same = (
            set(process.status()["Uid"].split()) == {str(os.geteuid())}
            and all(
                os.readlink(f"/proc/self/ns/{kind}") == os.readlink(f"{process.proc}/ns/{kind}") for kind in _SPACES
            )
            and os.path.samefile(process.exe, f"{process.proc}/exe")
        )
    except OSError:
        return None
    return process.exe if is_same and _PROGRAM.fullmatch(os.path.basename(process.exe)) else None


class _Kept:
    """A file in the user's cache folder, ignored if others could have written it."""

    def __init__(self, prefix: str, made_from: bytes) -> None:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        self._folder = Path(base, "probe") if os.path.isabs(base) else None
        self._prefix = prefix
        self._name = prefix + sha256(made_from).hexdigest()

    def read(self) -> bytes | None:
        if self._folder is None:
            return None
        try:
            descriptor = os.open(self._folder / self._name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return None
            digest, data = file.read(32), file.read()
        return data if sha256(data).digest() == digest else None

    def write(self, data: bytes) -> None:
        """Keep it in place of those made from other sources; a folder that cannot be written keeps nothing."""
        if self._folder is None:
            return
        with suppress(OSError):
            self._folder.mkdir(0o700, parents=True, exist_ok=True)
            new = self._folder / f"{self._name}.{os.getpid()}"
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(sha256(data).digest() + data)
            for old in self._folder.glob(self._prefix + "*"):
                if old != new:
                    old.unlink(missing_ok=True)
            new.rename(self._folder / self._name)
