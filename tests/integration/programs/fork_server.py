"""A Python that has imported torch and forks a process for each program, because importing torch takes seconds.

Reads commands from stdin, one JSON object per line, and answers each with one line. The child runs its program as
`python PROGRAM` would: as `__main__`, with its own exit code, `atexit` and streams. If PROBE is set, the recorder
starts before the program's first line, by the function that the `.pth` file calls; torch is already imported then.

    {"run": PROGRAM, "needs": [MODULE], "environ": {}, "stdout": PATH, "stderr": PATH}   {"pid": PID}
    {"wait": PID, "timeout": SECONDS}                                                    {"code": CODE or null}
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import time
from glob import glob
from importlib import import_module
from typing import Any


def serve() -> str:
    """Answer commands until there are no more. Returns in every child, with the path of the program to run."""
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            answer = {"code": wait(order["wait"], order["timeout"])}
        else:
            for name in order["needs"]:
                import_module(name)
            child = os.fork()
            if not child:
                become(order)
                return str(order["run"])
            answer = {"pid": child}
        print(json.dumps(answer), flush=True)
    return ""


def wait(pid: int, timeout_s: float) -> int | None:
    """Return the exit code of a child, as a shell would; None if it has not ended by then."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def become(order: dict[str, Any]) -> None:
    """Make this child the process that the command describes."""
    program = order["run"]
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, order["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        (2, order["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.argv = [program]
    sys.path[0] = os.path.dirname(program)
    from probe_agent.activate.start import start_if_asked

    start_if_asked()
    if os.environ.get("PROBE"):  # a program that imports torch itself takes longer than the recorder to get ready
        from probe_agent.recorder.ring.folder import BASES, TARGET, user_folder

        pattern = os.path.join(user_folder(BASES[0], os.getuid()), f"{os.getpid()}-*", TARGET)
        while not glob(pattern):
            time.sleep(0.005)


if __name__ == "__main__":
    torch = import_module("torch")
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # imports Dynamo, which takes as long again
    gc.collect()
    gc.freeze()  # what is here already is not for the children to look through at their end
    program = serve()
    if program:
        runpy.run_path(program, run_name="__main__")
