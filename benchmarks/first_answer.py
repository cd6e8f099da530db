"""Time to the first stacks of a process in any state: `python -m benchmarks.first_answer`.

Every command is `probe` as users run it, in its own process, with a host server that runs already. The time for which
a target stands still under `--native` is what the command says.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from .machine import provenance
from .process import plain_environment
from .spread import figure, table

__all__ = ["main"]

PROBE = [str(Path(sys.executable).with_name("probe"))]
_VFORK = """
import ctypes, os
libc, actions, argv = ctypes.CDLL(None), ctypes.create_string_buffer(256), (ctypes.c_char_p * 2)(b"true", None)
libc.posix_spawn_file_actions_init(actions)
libc.posix_spawn_file_actions_addopen(actions, 0, os.environ["FIFO"].encode(), os.O_RDONLY, 0)
print("ready", flush=True)
libc.posix_spawn(ctypes.byref(ctypes.c_int()), b"/bin/true", actions, None, argv, None)
"""
_TRAINS = """
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
print("ready", flush=True)
while True:
    model(torch.ones(64, 256)).sum().backward()
    optimizer.step()
"""
_SLEEPS = "import time; print('ready', flush=True); time.sleep(600)"


@dataclass(frozen=True)
class State:
    """A program, whether it is attached to before it gets into its state, and how it gets there."""

    code: str
    attach_first: bool = False
    act: Callable[[int], None] = lambda pid: None
    kernel: str = ""
    site: bool = False


def _stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def _go(pid: int) -> None:
    os.kill(pid, signal.SIGUSR1)
    time.sleep(0.2)


_ON_USR1 = "import signal; signal.signal(signal.SIGUSR1, lambda *_: {}); "
_HOLD = "ctypes.PyDLL(None).read(os.pipe()[0], ctypes.create_string_buffer(1), 1)"
STATES = {
    "trains (torch, one thread)": State(_TRAINS, attach_first=True),
    "trains, no recorder": State(_TRAINS),
    "waits for a lock": State(
        "import threading; l = threading.Lock(); l.acquire(); print('ready', flush=True); l.acquire()"
    ),
    "a C call holds the GIL, no recorder": State(f"import ctypes, os; print('ready', flush=True); {_HOLD}"),
    "a C call holds the GIL, with the recorder": State(
        "import ctypes, os, time; " + _ON_USR1.format(_HOLD) + "print('ready', flush=True); time.sleep(600)", True, _go
    ),
    "stopped (SIGSTOP), no recorder": State(_SLEEPS, act=_stop),
    "stopped (SIGSTOP), with the recorder": State(_SLEEPS, True, _stop),
    "D state": State(_VFORK, kernel="D"),
    "interpreter half started": State("", site=True),
    "at exit, in an atexit handler": State(
        "import atexit, time; atexit.register(lambda: (print('ready', flush=True), time.sleep(600)))"
    ),
    "at exit, with the recorder": State(
        "import atexit, sys, time; atexit.register(time.sleep, 600); "
        + _ON_USR1.format("sys.exit()")
        + "print('ready', flush=True); time.sleep(600)",
        True,
        _go,
    ),
}  # fmt: skip


@contextmanager
def _in_state(state: State, folder: Path) -> Iterator[int]:
    fifo = folder / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
        (folder / "sitecustomize.py").write_text("import time; print('ready', flush=True); time.sleep(600)")
    environment = {**plain_environment(), "FIFO": str(fifo)} | ({"PYTHONPATH": str(folder)} if state.site else {})
    with subprocess.Popen(
        [sys.executable, "-c", state.code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            if state.attach_first:
                subprocess.run([*PROBE, str(process.pid), "inject"], capture_output=True, check=True)
            state.act(process.pid)
            time.sleep(0.2)
            yield process.pid
        finally:
            process.kill()
            if state.kernel == "D":
                os.close(os.open(fifo, os.O_RDWR))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--states", nargs="*", default=[], help="only those that begin with one of these")
    asked = parser.parse_args()
    rows = []
    subprocess.run([*PROBE, "list"], capture_output=True)  # starts the host server
    with TemporaryDirectory() as folder:
        for name, state in STATES.items():
            if asked.states and not name.startswith(tuple(asked.states)):
                continue
            took, native, still, frames = [], [], [], 0
            for _ in range(asked.rounds):
                with _in_state(state, Path(folder)) as pid:
                    began = time.monotonic()
                    done = subprocess.run([*PROBE, str(pid), "backtrace"], capture_output=True, text=True)
                    took.append(time.monotonic() - began)
                    frames += done.returncode == 0 and "\n#0" in done.stdout
                    began = time.monotonic()
                    command = [*PROBE, "--no-inject", str(pid), "backtrace", "--native"]
                    done = subprocess.run(command, capture_output=True, text=True)
                    native.append(time.monotonic() - began)
                    still += [float(found) for found in re.findall(r"stood still for ([\d.]+) s", done.stderr)]
            if not frames:
                print(name, done.stderr, sep=": ", file=sys.stderr)
            rows.append(
                (
                    name,
                    f"{frames} of {asked.rounds}",
                    figure(took).show(unit="s"),
                    f"{max(took):.2f} s",
                    figure(native).show(unit="s"),
                    figure(still).show(unit="s") if still else "not stopped",
                )
            )
            print(rows[-1], file=sys.stderr, flush=True)
    headings = ("state", "with frames", "first answer", "longest", "with `--native`", "stands still for it")
    print(table(headings, rows))
    print(f"\n{provenance()}")


if __name__ == "__main__":
    main()
