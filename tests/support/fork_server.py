"""A Python that has imported modules and forks a process for each program that needs them: to import torch and Dynamo
takes 3 s of CPU time, and what a command needs 0.2 s. See forked.py, which speaks to it.

A child runs its program as `python PROGRAM ARGUMENT…` would, or `-c CODE` and `-m MODULE`: as `__main__`, with its own
exit code, `atexit` and streams, its command line and environment in /proc. (Where the kernel does not let it have
these, it becomes a Python of its own by exec.) If PROBE is set, the recorder starts before the program's first line, by
the function that the `.pth` file calls; torch is already imported then.

    fork_server.py DESCRIPTOR MODULE…

Reads orders from a socket, one JSON object each, and answers each.

    {"command": [PROGRAM, ARGUMENT…], "needs": [MODULE], "environ": {}, "folder": PATH}, and three descriptors     PID
    {"wait": PID}                                                          what waitpid(PID, WNOHANG) has returned
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import socket
import sys
import time
from glob import glob
from importlib import import_module
from types import ModuleType
from typing import Any

#: The longest order.
MAX_BYTES = 1 << 18


def serve(orders: socket.socket) -> list[str]:
    """Answer orders until there are no more. Returns in every child, with the command to run."""
    while True:
        data, streams, *_ = socket.recv_fds(orders, MAX_BYTES, 3)
        if not data:
            return []
        order = json.loads(data)
        if "wait" in order:
            answer: object = os.waitpid(order["wait"], os.WNOHANG)
        else:
            for name in order["needs"]:
                import_module(name)
            answer = os.fork()
            if not answer:
                orders.close()
                become(order, streams)
                return list(order["command"])
            for descriptor in streams:
                os.close(descriptor)
        orders.send(json.dumps(answer).encode())


class MemoryMap(ctypes.Structure):
    """The kernel's `struct prctl_mm_map`."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in (
            "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
            "arg_start", "arg_end", "env_start", "env_end", "auxv",
        )),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]  # fmt: skip


#: Of /proc/self/stat, counted from the state: what a map does not change.
STAT = {"start_code": 23, "end_code": 24, "start_stack": 25, "start_data": 42, "end_data": 43, "start_brk": 44}
PR_SET_MM, PR_SET_MM_MAP, NONE = 35, 14, 2**32 - 1
#: The strings that /proc shows.
_kept: list[object] = []


def shown(command: list[str], environ: dict[str, str]) -> bool:
    """Make these the command line and the environment in our /proc; return whether the kernel has let us."""
    with open("/proc/self/stat") as file:
        stat = file.read().rpartition(")")[2].split()
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    found = MemoryMap(exe_fd=NONE, **{name: int(stat[at]) for name, at in STAT.items()})
    for name, words in (("arg", command), ("env", [f"{name}={value}" for name, value in environ.items()])):
        text = b"".join(os.fsencode(word) + b"\0" for word in words)
        _kept.append(buffer := ctypes.create_string_buffer(text, len(text)))
        setattr(found, f"{name}_start", ctypes.addressof(buffer))
        setattr(found, f"{name}_end", ctypes.addressof(buffer) + len(text))
    found.brk = libc.sbrk(0)
    return libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(found), ctypes.sizeof(found), 0) == 0


def become(order: dict[str, Any], streams: list[int]) -> None:
    """Make this child the process that the order describes."""
    for descriptor, given in enumerate(streams):
        os.dup2(given, descriptor)
        os.close(given)
    os.chdir(order["folder"])
    command = [sys.executable, *order["command"]]
    if not shown(command, order["environ"]):
        os.execve(sys.executable, command, order["environ"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.orig_argv[:] = command
    how = order["command"][0]
    sys.path[0] = {"-c": "", "-m": os.getcwd()}.get(how, os.path.dirname(how))
    sys.path[1:1] = [entry for entry in os.environ.get("PYTHONPATH", "").split(":") if entry]
    from probe_agent.activate.start import start_if_asked

    start_if_asked()
    if os.environ.get("PROBE"):
        from probe_agent.recorder.ring.folder import BASES, TARGET, user_folder

        # A program that imports torch itself takes longer than the recorder to get ready.
        for own in glob(os.path.join(user_folder(BASES[0], os.getuid()), f"{os.getpid()}-*")):
            while not os.path.exists(os.path.join(own, TARGET)):
                time.sleep(0.005)


def run(command: list[str]) -> None:
    """Do what `python COMMAND` does."""
    how, *rest = command
    sys.argv = ["-c", *rest[1:]] if how == "-c" else rest if how == "-m" else command
    if how == "-m":
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif how == "-c":
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(rest[0], vars(main))
    else:
        runpy.run_path(how, run_name="__main__")


if __name__ == "__main__":
    for name in sys.argv[2:]:
        import_module(name)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # imports Dynamo, which takes as long again
    gc.collect()
    gc.freeze()  # what is here already is not for the children to look through at their end
    command = serve(socket.socket(fileno=int(sys.argv[1])))
    if command:
        run(command)
