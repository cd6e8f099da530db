"""Program that makes the recorder's system calls, each after it has written its name to a pipe: `seccomp_trial.py FD`.

A child of a process with seccomp filters, which may kill it (`seccomp.py`).
"""

import ctypes
import os
import resource
import runpy
import signal
import sys

__all__ = ()

_CALLS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inject/preflight/system_calls.py")
_MOST_S = 5

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(_MOST_S)
    call = ctypes.CDLL(None).syscall
    # `exit` comes last, because it ends this process.
    for each in sorted(runpy.run_path(_CALLS)["NEEDED"], key=lambda each: bool(each.name == "exit")):
        os.write(int(sys.argv[1]), f"{each.name}\n".encode())
        call(ctypes.c_long(each.number), *map(ctypes.c_ulong, each.harmless))
