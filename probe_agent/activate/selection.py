"""Selection of processes that get a recorder, by the job's environment.

Runs on the main thread while the interpreter starts, and only when PROBE is set: a few reads of /proc.

    PROBE=1                  the job's own processes: what the user or a launcher started
    PROBE=all                their children too: DataLoader workers, multiprocessing, Python tools they start
    PROBE_SCRIPT=train_*.py  only where the script, or the module after -m, has such a name
    PROBE_RANKS=0,4-7        only where RANK is one of these; a process without RANK is rank 0
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["FORK_SERVER", "TARGET", "BadValue", "is_launcher", "is_tool", "program_of", "role", "with_children"]

TARGET = "target"
#: The fork server of multiprocessing, where the children of a target are targets: it forks them.
FORK_SERVER = "fork server"

#: Launchers inherit PROBE from the user and do not train; what they start does. By the name of the script, the
#: module after -m, or how the code after -c begins.
_LAUNCHERS = {
    "script": ("torchrun", "accelerate", "accelerate-launch", "deepspeed", "composer", "horovodrun", "fabric"),
    "module": ("torch.distributed.", "accelerate.", "deepspeed.", "composer.cli", "horovod.runner"),
    "code": (),
}
#: Tools, inductor's compile workers among them; neither they nor what they start train.
_TOOLS = {
    "script": (
        *("probe", "probe_agent/server/__main__.py", "pip", "pip3", "ninja", "cmake"),
        "torch/_inductor/compile_worker/__main__.py",
    ),
    "module": ("pip", "probe_cli", "probe_agent.server", "torch._inductor.compile_worker", "ensurepip", "venv"),
    "code": ("from multiprocessing.resource_tracker ", "\nimport sys\nsys.path[:] = sys.argv[3:]\nfrom probe_agent."),
}


class BadValue(ValueError):
    """An invalid value of a variable; the text names it, and says what it takes."""


def role(environ: Mapping[str, str]) -> str | None:
    """Return TARGET, FORK_SERVER, or None for a process that is not selected. Raises BadValue."""
    if environ.get("PROBE", "0") in ("", "0"):
        return None
    command = _command("self")
    if is_launcher(command) or is_tool(command):
        return None
    kind, program = program_of(command)
    is_worker = kind == "code" and program.startswith(("from multiprocessing.", "import multiprocessing."))
    if is_worker and environ["PROBE"] != "all":
        return None
    children = with_children(environ)
    answer = FORK_SERVER if is_worker and "multiprocessing.forkserver " in program else TARGET
    pattern, ranks = _pattern(environ), _ranks(environ)
    targets = _targets()
    for pid, ticks in _ancestors():
        if is_tool(_command(pid)):
            return None
        if f"{pid}-{ticks}" in targets:
            return answer if children else None
    is_meant = _has_name(kind, program, pattern) and any(first <= _rank(environ) <= last for first, last in ranks)
    return answer if is_meant else None


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether a Python with these arguments is a launcher: it does not train, what it starts does."""
    return _is_one_of(_LAUNCHERS, *program_of(command))


def is_tool(command: Sequence[str]) -> bool:
    """Return whether a Python with these arguments is a tool, which never trains."""
    return _is_one_of(_TOOLS, *program_of(command))


def with_children(environ: Mapping[str, str]) -> bool:
    """Return whether the children of a target are targets too. Raises BadValue."""
    if environ["PROBE"] not in ("1", "all"):
        raise BadValue(f"PROBE={environ['PROBE']!r}: it takes 1 (this process), all (its children too) or 0")
    return environ["PROBE"] == "all"


def _pattern(environ: Mapping[str, str]) -> str:
    pattern = environ.get("PROBE_SCRIPT", "")
    if "/" in pattern:
        raise BadValue(
            f"PROBE_SCRIPT={pattern!r}: it takes the name of a script without its folder, or of a module as after -m,"
            " such as train.py, train_*.py or package.train"
        )
    return pattern


def _has_name(kind: str, program: str, pattern: str) -> bool:
    from fnmatch import fnmatchcase  # runs at every start of Python: only with PROBE_SCRIPT it loads `re`

    name = os.path.basename(program) if kind == "script" else program
    return not pattern or (kind != "code" and fnmatchcase(name, pattern))


def _ranks(environ: Mapping[str, str]) -> list[tuple[int, int]]:
    """Return first and last of every range of ranks."""
    text = environ.get("PROBE_RANKS", "")
    if not text:
        return [(0, sys.maxsize)]
    chosen = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() and len(end) < 10 for end in ends) or int(ends[0]) > int(ends[1]):
            raise BadValue(f"PROBE_RANKS={text!r}: it takes ranks and ranges of them, such as 0 or 0,4-7")
        chosen.append((int(ends[0]), int(ends[1])))
    return chosen


def _rank(environ: Mapping[str, str]) -> int:
    text = environ.get("RANK", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _command(pid: int | str) -> list[str]:
    """Return the arguments of a process; none if it is gone or hidden from us."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().decode("utf-8", "replace").split("\0")[:-1]
    except OSError:
        return []


def program_of(command: Sequence[str]) -> tuple[str, str]:
    """Return what an interpreter runs: ("script", its path), ("module", its name) or ("code", its text)."""
    rest = iter(command[1:])
    for argument in rest:
        if not argument.startswith("-") or argument == "-":
            return "script", argument
        if argument == "--check-hash-based-pycs":
            next(rest, "")
        elif not argument.startswith("--"):
            for at, letter in enumerate(argument):  # -m, -um, -mpackage: flags, then one that takes a value
                if letter in "mcWX":
                    value = argument[at + 1 :] or next(rest, "")
                    if letter in "mc":
                        return {"m": "module", "c": "code"}[letter], value
                    break
    return "script", ""


def _is_one_of(names: Mapping[str, tuple[str, ...]], kind: str, program: str) -> bool:
    if kind == "script":
        return any(program == name or program.endswith("/" + name) for name in names[kind])
    return program.startswith(names[kind])


def _targets() -> set[str]:
    """Return the names of the folders of this user's targets: PID and start time."""
    parents = (f"/dev/shm/probe-{os.getuid()}", f"/tmp/probe-{os.getuid()}")
    return {name for parent in parents if os.path.isdir(parent) for name in os.listdir(parent)}


def _ancestors() -> Iterator[tuple[int, str]]:
    """PID and start time of the parent, its parent, and so on as far as they are visible."""
    pid = os.getppid()
    while pid > 1:
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            return
        yield pid, fields[19]
        pid = int(fields[1])
