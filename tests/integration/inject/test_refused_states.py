"""A process that is stopped, waits in the kernel or is just ending is refused, and left as it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.waiting import until

from probe_agent import inject
from probe_agent.errors import AttachRefused

from .conftest import Target, detach, state
from .programs import FOREVER, child_of, program, refused, unshare

#: A child between vfork and exec waits for a writer of FIFO; until then, whoever calls `spawn` is in D state.
VFORK = """
import ctypes, os, threading, time
libc, actions, argv = ctypes.CDLL(None), ctypes.create_string_buffer(256), (ctypes.c_char_p * 2)(b"true", None)
libc.posix_spawn_file_actions_init(actions)
libc.posix_spawn_file_actions_addopen(actions, 0, {fifo!r}.encode(), os.O_RDONLY, 0)
def spawn():
    child = ctypes.c_int()
    return libc.posix_spawn(ctypes.byref(child), b"/bin/true", actions, None, argv, None)
"""


def is_traced(pid: int) -> bool:
    return "TracerPid:\t0\n" not in Path(f"/proc/{pid}/status").read_text()


@pytest.mark.situation("under gdb or strace", "refused; the tracer is named")
@pytest.mark.parametrize(
    "tracer",
    [("strace", "-o/dev/null", "-p"), ("gdb", "-nx", "-batch", "-ex", "shell sleep 60", "-p")],
    ids=lambda t: t[0],
)
def test_a_process_that_a_real_debugger_holds(start: Callable[..., Target], tracer: tuple[str, ...]) -> None:
    if shutil.which(tracer[0]) is None:
        pytest.skip(f"{tracer[0]} is not installed")
    target = start("spin")
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*tracer, str(target.pid)], start_new_session=True, **quiet) as debugger:  # type: ignore[call-overload]
        until(lambda: is_traced(target.pid) and (tracer[0] != "gdb" or state(target.pid) == "t"), 60.0)

        with refused(target.pid, "t (tracing stop)" if tracer[0] == "gdb" else "traces it", f"(pid {debugger.pid})"):
            pass

        os.killpg(debugger.pid, signal.SIGKILL)
    until(lambda: not is_traced(target.pid))
    detach(inject.attach(target.pid))
    assert target.finish()["result"]


@pytest.mark.situation("its main thread waits in the kernel (D state)", "refused; works when the wait is over")
def test_a_main_thread_that_nothing_can_interrupt(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = VFORK.format(fifo=str(fifo)) + "print('ready', flush=True)\nprint(spawn(), flush=True)\ntime.sleep(60)"
    with program(code) as process:
        until(lambda: state(process.pid) == "D")

        with refused(process.pid, "D (disk sleep)", f"cat /proc/{process.pid}/stack"):
            pass

        fifo.write_text("")
        assert process.stdout is not None
        assert process.stdout.readline() == "0\n"
        detach(inject.attach(process.pid))


@pytest.mark.situation("a thread other than the main one waits in the kernel (D state)", "works")
def test_another_thread_that_nothing_can_interrupt(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = VFORK.format(fifo=str(fifo)) + "threading.Thread(target=spawn, daemon=True).start()" + FOREVER
    with program(code) as process:
        tids = [int(tid) for tid in os.listdir(f"/proc/{process.pid}/task") if int(tid) != process.pid]
        until(lambda: [state(tid) for tid in tids] == ["D"])

        detach(inject.attach(process.pid))

        assert [state(tid) for tid in tids] == ["D"]
        fifo.write_text("")


@pytest.mark.situation("exiting: the kernel is tearing it down", "refused")
def test_a_process_that_the_kernel_is_taking_apart() -> None:
    with program(FOREVER, before=unshare("--pid", "--fork", "--kill-child")) as outer:
        pid = child_of(outer)
        # The first process of a namespace cannot be over before all others in it are; we keep one from being cleared.
        with subprocess.Popen(["nsenter", "-t", str(pid), "-p", "sleep", "60"]) as other:
            try:
                until(lambda: Path(f"/proc/{other.pid}/task/{other.pid}/children").read_text() != "")
                other.send_signal(signal.SIGSTOP)
                until(lambda: state(other.pid) == "T")
                os.kill(pid, signal.SIGKILL)
                until(lambda: Path(f"/proc/{pid}/cmdline").read_bytes() == b"")
                is_zombie = state(pid) == "Z"

                with refused(pid, "it has no memory", "probe list"):
                    pass
            finally:
                outer.kill()  # before it sees that its child was killed: it would complain of that
                other.kill()
    assert not is_zombie


@pytest.mark.situation("its main thread has ended, others go on", "refused")
def test_a_process_without_its_main_thread() -> None:
    code = (
        "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
        "print('ready', flush=True)\nctypes.CDLL(None).syscall(60, 0)"
    )
    if os.uname().machine != "x86_64":
        pytest.skip("the number of exit(2) is that of x86-64")
    with program(code) as process:
        until(lambda: state(process.pid) == "Z")

        with refused(process.pid, "Z (zombie)", "PROBE=1"):
            pass


@pytest.mark.situation("its interpreter is shutting down", "refused; it ends as it would have")
@pytest.mark.parametrize("how", ["time.sleep(1.5)", "[sum(range(100)) for _ in range(400_000)]"])
def test_an_interpreter_that_shuts_down(how: str) -> None:
    code = (
        "import os, time\nclass Last:\n def __del__(self, os=os, time=time, sum=sum, range=range):\n"
        f"  os.write(1, b'ready\\n')\n  {how}\nlast = Last()"
    )
    with program(code) as process:
        with pytest.raises(AttachRefused, match="or is gone"):
            inject.attach(process.pid)

        assert process.wait(60) == 0
