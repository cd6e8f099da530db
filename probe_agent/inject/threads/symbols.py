"""Addresses of the functions that a borrowed thread calls, in the interpreter and in the C library.

Runs in the attaching process. A file on disk may have been replaced since the process mapped it (an upgrade under
a running job), and a call to a wrong address would end the job: so the bytes of every function are compared.
"""

from __future__ import annotations

from probe_agent.errors import AttachRefused

from .elf import Symbol
from .tracee import Module, Tracee

__all__ = ["INTERPRETER", "PENDING_QUEUE", "PTHREAD", "addresses", "spans"]

INTERPRETER = (
    "Py_IsInitialized",
    "Py_AddPendingCall",
    "PyDict_New",
    "PyDict_Size",
    "PyRun_String",
    "Py_DecRef",
    "PyErr_Clear",
    "PyErr_Occurred",
    "PyGILState_Ensure",
    "PyGILState_Release",
)
PTHREAD = ("pthread_create", "pthread_self", "pthread_detach")
#: Functions that may hold the lock of the queue of pending calls; some builds do not keep the names of all.
PENDING_QUEUE = (
    "Py_AddPendingCall",
    "_PyEval_AddPendingCall",
    "Py_MakePendingCalls",
    "_PyEval_MakePendingCalls",
    "_Py_FinishPendingCalls",
    "make_pending_calls",
    "_make_pending_calls",
)
_FILES = ("libpython", "python", "libc.so", "libc-", "libpthread")
#: The first bytes of a function may be a breakpoint.
_SKIP, _COMPARE = 8, 24


def addresses(process: Tracee, names: tuple[str, ...]) -> dict[str, int]:
    """Return the addresses of those of these functions that the process has. Raises AttachRefused if files changed."""
    found: dict[str, int] = {}
    for module in _modules(process):
        for name, symbol in module.elf.symbols(name for name in names if name not in found).items():
            found[name] = module.bias + symbol.address
            _compare(process, module, name, symbol)
    return found


def spans(process: Tracee, names: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the start and the end of these functions."""
    return [
        (module.bias + symbol.address, module.bias + symbol.address + symbol.size)
        for module in _modules(process)
        for symbol in module.elf.symbols(names).values()
    ]


def _modules(process: Tracee) -> list[Module]:
    paths = [
        path
        for path in process.code_files
        if path.rpartition("/")[2].startswith(_FILES) or path.removesuffix(" (deleted)") == process.exe
    ]
    return [module for path in paths if (module := process.module(path)) is not None]


def _compare(process: Tracee, module: Module, name: str, symbol: Symbol) -> None:
    size = max(0, min(_COMPARE, symbol.size - _SKIP))
    at = symbol.address + _SKIP
    if process.read_memory(module.bias + at, size) != module.elf.read(at, size):
        raise AttachRefused(
            f"cannot attach to pid {process.pid}: {name} in its memory is not what {module.path} has on disk",
            "attach as root, who can read the file that the process has open: the one on disk was replaced since",
        )
