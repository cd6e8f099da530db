"""What a dying job leaves: its exception, exit code or fatal signal; and that it dies as it does without Probe."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from inject.conftest import detach, installed_pythons
from support.commands import Probe, plain
from support.waiting import until

from probe_agent import inject

from .conftest import Dying, caught, rows, twins

CHAINED = """
def read(): raise KeyError("lr")
def main():
    try: read()
    except KeyError as error: raise RuntimeError("no learning rate") from error
def worker(): raise ValueError("in a thread")
thread = threading.Thread(target=worker, name="worker-7")
thread.start(); thread.join()
main()
"""


@pytest.mark.situation(
    "an exception is not caught", "type, message, causes and frames are kept; its output is as without Probe"
)
def test_an_uncaught_exception_is_kept_with_its_cause(tmp_path: Path, probe: Probe) -> None:
    job, probed, alone = twins(CHAINED, tmp_path)

    stack = probe(str(job.pid), "backtrace")
    listed = probe("list", "--dead")
    asked = probe(str(job.pid), "query", "SELECT how, exit_code, signal, exception FROM process.end", "--format", "csv")

    assert probed == alone
    assert [(row["thread"], row["is_main"], row["link"], row["relation"], row["type"], row["message"], row["func"])
            for row in job.exceptions] == [
        ("worker-7", False, 0, "uncaught", "ValueError", "in a thread", "worker"),
        ("MainThread", True, 0, "uncaught", "RuntimeError", "no learning rate", "main"),
        ("MainThread", True, 1, "cause", "KeyError", "'lr'", "read"),
    ]  # fmt: skip
    assert 'job.py", line 9, in main' in job.exceptions[1]["traceback"]
    assert stack.returncode == 0, stack.stderr
    assert "raise RuntimeError" in stack.stdout
    assert "raised RuntimeError: no learning rate; this is the stack of the exception" in stack.stderr
    assert "caused by KeyError: 'lr', raised by read" in stack.stderr
    # Another process that has left something may have had the same number.
    of_job = [line for line in listed.stdout.splitlines() if str(job.pid) in line]
    assert any("raised RuntimeError: no learning rate" in line for line in of_job), of_job
    assert asked.stdout.splitlines()[1] == "raised RuntimeError: no learning rate,1,,RuntimeError: no learning rate"


@pytest.mark.parametrize(
    ("code", "status", "how"),
    [
        ("sys.exit(3)", 3, "exited with code 3"),
        ("if not os.fork(): sys.exit(4)\nos.wait()\nsys.exit(-1)", 255, "exited with code 255"),
        ("ctypes.string_at(0)", -11, "was killed by SIGSEGV"),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                ("raise SystemExit('a text')", 1, "exited with code 1"),
                ("pass", 0, "exited normally"),
                ("ctypes.CDLL(None).exit(9)", 9, "exited with code 9"),
                ("os.abort()", -6, "was killed by SIGABRT"),
                ("os.kill(os.getpid(), signal.SIGFPE)", -8, "was killed by SIGFPE"),
                ("os.kill(os.getpid(), signal.SIGBUS)", -7, "was killed by SIGBUS"),
                ("os.kill(os.getpid(), signal.SIGILL)", -4, "was killed by SIGILL"),
            )
        ),
    ],
)
def test_exit_code_and_fatal_signal_are_known_without_a_witness(
    code: str, status: int, how: str, tmp_path: Path
) -> None:
    job, probed, alone = twins(code, tmp_path)

    assert probed == alone
    assert probed[0] == status
    assert (job.end.how, job.end.code, job.end.badly) == (how, status, status != 0)


def test_a_child_that_exits_in_c_leaves_no_exit_code_of_its_parents(tmp_path: Path) -> None:
    code = """
import glob
libc = ctypes.CDLL(None)
if not libc.fork(): libc.exit(4)
os.wait()
files = glob.glob(f"/dev/shm/probe-*/{os.getpid()}-*/exit_code")
while any(open(file, "rb").read() != bytes([255]) * 64 for file in files): time.sleep(0.01)
os._exit(0)
"""
    job, probed, alone = twins(code, tmp_path)

    assert probed == alone
    assert job.end.code in (None, 0)  # the latter if a host server of this user watches


@pytest.mark.situation("a fatal signal", "the stack is kept; exit status, core dump and output are as without Probe")
def test_a_core_is_dumped_as_without_us(tmp_path: Path) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard != resource.RLIM_INFINITY or Path("/proc/sys/kernel/core_pattern").read_text().startswith("|"):
        pytest.skip("no core is dumped into a file here")
    before = ("sh", "-c", 'ulimit -c unlimited; exec "$@"', "sh")
    job, probed, alone = twins("ctypes.string_at(0)", tmp_path, before=before)

    cores = list(tmp_path.glob("core*"))

    assert probed == alone
    assert job.end.how == "was killed by SIGSEGV"
    assert cores


HOOKS = """
def own(kind, value, trace):
    print("own hook:", kind.__name__, value, trace.tb_lineno, flush=True)
def thread_hook(args):
    print("thread hook:", args.exc_type.__name__, args.thread.name, flush=True)
sys.excepthook, threading.excepthook = own, thread_hook
"""
RAISES = """
def fail(): raise ValueError("x")
thread = threading.Thread(target=fail, name="worker-7"); thread.start(); thread.join()
fail()
"""


def test_the_jobs_own_hooks_are_called_whether_they_were_there_before_or_come_later(tmp_path: Path) -> None:
    later, *of_later = twins(HOOKS + RAISES, tmp_path / "later")
    chaining = HOOKS.replace("print(", "ours(kind, value, trace); print(", 1)
    called, *of_called = twins("ours = sys.excepthook" + chaining + RAISES, tmp_path / "chaining")
    failing, *of_failing = twins(HOOKS.replace("print(", "undefined(", 1) + RAISES, tmp_path / "failing")

    assert of_later[0] == of_later[1]
    assert of_called[0] == of_called[1]
    assert of_failing[0] == of_failing[1]
    for job in (later, called, failing):  # the thread's own hook hides it from us; the main thread's does not
        assert [(row["thread"], row["message"]) for row in job.exceptions] == [("MainThread", "x")]


ATTACHED = """
import ctypes, faulthandler, os, sys, threading
def own(kind, value, trace):
    print("own hook:", value, sys.excepthook is not own, flush=True)
    os._exit(7)
if "hooks" in sys.argv: sys.excepthook = own
if "faulthandler" in sys.argv: faulthandler.enable()
print("ready", flush=True)
word = sys.stdin.readline()
if "late" in sys.argv:
    print(faulthandler.is_enabled(), flush=True)
    faulthandler.enable()
if word == "raise\\n":
    thread = threading.Thread(target=lambda: 1 / 0, name="divides"); thread.start(); thread.join()
    raise ValueError("x") from OSError(2, "no file")
ctypes.string_at(0)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("attached") / "job.py"
    path.write_text(ATTACHED)
    return path


def attached_death(
    python: str, script: Path, word: str, *arguments: str, attach: bool = True
) -> tuple[tuple[int, str, str], Path | None]:
    """Attach to a program, let it die, and return its exit status and output, and its files."""
    process = subprocess.Popen(
        [python, str(script), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=plain(),
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    folder = inject.attach(process.pid, timeout_s=60).folder if attach else None
    if folder is not None:
        until(lambda: (folder / "exit_code").exists() and (caught(process.pid) or _is_written(folder / "fatal.txt")))
    out, err = process.communicate(word + "\n", timeout=60)
    return (process.returncode, out, err), folder


def test_a_fault_in_evaluated_code_leaves_the_stack_of_its_thread(script: Path, probe: Probe) -> None:
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain()
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        folder = inject.attach(process.pid, timeout_s=60).folder
        until(lambda: (folder / "exit_code").exists() and (folder / "fatal.txt").exists())

        probe(str(process.pid), "eval", "ctypes.string_at(0)")

        assert process.wait(60) == -signal.SIGSEGV
    assert "Segmentation fault" in (folder / "fatal.txt").read_text()
    assert '"<eval 1>", line 1' in (folder / "fatal.txt").read_text()


#: The oldest and the newest every time, the others with the long tests.
PYTHONS = [
    pytest.param(python, id=version, marks=[] if version.startswith(("3.9.", "3.13.")) else pytest.mark.long)
    for python in installed_pythons()
    for version in [python.split("/")[-3]]
]


@pytest.mark.parametrize("python", PYTHONS)
def test_each_python_leaves_its_exceptions_and_its_fatal_signal(python: str, script: Path) -> None:
    raised, left = attached_death(python, script, "raise")
    crashed, dump = attached_death(python, script, "crash")
    alone = [attached_death(python, script, word, attach=False)[0] for word in ("raise", "crash")]

    assert [raised, crashed] == alone
    assert left is not None
    assert dump is not None
    assert [(row["thread"], row["type"], row["relation"]) for row in rows(left)] == [
        ("divides", "ZeroDivisionError", "uncaught"),
        ("MainThread", "ValueError", "uncaught"),
        ("MainThread", "FileNotFoundError", "cause"),
    ]
    text = (dump / "fatal.txt").read_text()
    assert "Segmentation fault" in text
    assert "in string_at" in text


@pytest.mark.situation("the job has its own excepthook and faulthandler", "their output is as without Probe")
def test_a_hook_that_ends_the_process_and_a_faulthandler_of_the_jobs_do_what_they_did(script: Path) -> None:
    raised, left = attached_death(sys.executable, script, "raise", "hooks")
    crashed, dump = attached_death(sys.executable, script, "crash", "faulthandler")
    enabled_later, remark = attached_death(sys.executable, script, "crash", "late")
    alone = [
        attached_death(sys.executable, script, word, *how, attach=False)[0]
        for word, *how in (("raise", "hooks"), ("crash", "faulthandler"), ("crash", "late"))
    ]

    assert _of_failing_thread(crashed) == _of_failing_thread(alone[1])
    assert _of_failing_thread(enabled_later) == _of_failing_thread(alone[2])
    assert raised[0] == alone[0][0] == 7
    assert left is not None
    assert dump is not None
    assert remark is not None
    assert [row["message"] for row in rows(left) if row["is_main"]] == ["x", "[Errno 2] no file"]
    assert (dump / "fatal.txt").read_text() == "# the job has enabled faulthandler itself: the stack is in its output\n"
    assert (remark / "fatal.txt").read_text() == "# the job has enabled faulthandler itself since\n"


def _of_failing_thread(died: tuple[int, str, str]) -> tuple[int, str, str]:
    """Keep faulthandler's dump of the thread that failed, without its address: the recorder's is among the others."""
    code, out, err = died
    assert err.startswith("Fatal Python error: Segmentation fault\n\n")
    return code, out, err[err.index("Current thread") :].partition(" ")[2].partition("(")[2]


def test_without_memory_the_exception_is_kept(tmp_path: Path) -> None:
    code = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
kept = []
while True: kept.append(bytearray(1 << 20))
"""
    job, probed, alone = twins(code, tmp_path)

    assert probed == alone
    assert [(row["type"], row["is_main"]) for row in job.exceptions] == [("MemoryError", True)]
    assert job.end.how.startswith("raised MemoryError")


@pytest.mark.situation("the target is killed while a host server runs", "its signal is known, whoever has reaped it")
def test_a_host_server_sees_which_signal_or_exit_code_it_was(tmp_path: Path, probe: Probe) -> None:
    ways = [
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("os._exit(5)", "exited with code 5, without its exit handlers"),
    ]
    jobs = [Dying(code, tmp_path / str(number), PROBE="1") for number, (code, _) in enumerate(ways)]
    for job in jobs:
        job.wait_for_recorder()
    probe("list")
    for job in jobs:
        until(lambda: _is_watched(job.pid))  # noqa: B023
        job.die()

    for job, (_, how) in zip(jobs, ways, strict=True):
        until(lambda: _is_written(job.files / "gone.json"))  # noqa: B023
        assert job.end.how == how
        assert job.end.known_from == ("the host server",)
    hang = probe(str(jobs[0].pid), "hang")
    stack = probe(str(jobs[0].pid), "backtrace")
    assert "was killed by SIGKILL" in hang.stdout
    assert stack.returncode == 4
    assert "was killed by SIGKILL, and left no stack" in stack.stderr


def _is_written(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _is_watched(pid: int) -> bool:
    """Return whether any process holds a pidfd of `pid`."""
    for path in Path("/proc").glob("[0-9]*/fdinfo/*"):
        try:
            if f"Pid:\t{pid}\n" in path.read_text():
                return True
        except OSError:
            continue
    return False


def test_a_child_of_multiprocessing_leaves_the_exception_that_its_parent_prints(tmp_path: Path) -> None:
    code = """
import multiprocessing
def child():
    deadline = time.monotonic() + 30
    while traceback.print_exc.__name__ == "print_exc" and time.monotonic() < deadline:
        time.sleep(0.01)  # until the recorder is there
    raise ValueError("in a child")
if __name__ == "__main__":
    process = multiprocessing.get_context(METHOD).Process(target=child)
    process.start()
    print(process.pid, flush=True)
    process.join()
    sys.exit(process.exitcode)
"""
    for method in ("spawn",):
        script = tmp_path / method / "job.py"
        script.parent.mkdir()
        script.write_text(
            "import ctypes, os, sys, time, traceback  # torch imports the last one, too\n"
            + code.replace("METHOD", repr(method))
        )
        done = subprocess.run(
            [sys.executable, str(script)],
            env={**plain(), "PROBE": "all", "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=60,
        )
        pid = int(done.stdout)
        (folder,) = Path(f"/dev/shm/probe-{os.getuid()}").glob(f"{pid}-*")

        assert done.returncode == 1
        assert "probe" not in done.stderr
        assert [(row["type"], row["message"], row["func"]) for row in rows(folder)] == [
            ("ValueError", "in a child", "child")
        ]


@pytest.mark.situation("the cgroup runs out of memory", "the OOM killer is named")
def test_the_oom_killer_of_a_cgroup_is_named(tmp_path: Path) -> None:
    cgroup = Path(f"/sys/fs/cgroup/memory/probe-test-{os.getpid()}")
    try:
        cgroup.mkdir()
        (cgroup / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError:
        pytest.skip("no cgroup of version 1 that we may make")
    try:
        job = Dying("kept = [bytearray(os.urandom(1 << 20)) for _ in range(400)]", tmp_path, PROBE="1")
        job.wait_for_recorder()
        (cgroup / "cgroup.procs").write_text(str(job.pid))
        status, _, _ = job.die()
    finally:
        until(lambda: not (cgroup / "cgroup.procs").read_text())
        cgroup.rmdir()

    assert status == -signal.SIGKILL
    assert job.end.how.startswith("was killed by SIGKILL: the OOM killer of its cgroup"), job.end


def test_a_detach_gives_the_hooks_back() -> None:
    code = """
import ctypes, faulthandler, signal, sys, threading
def state():
    return sys.excepthook, threading.excepthook, faulthandler.enable, faulthandler.disable, faulthandler.is_enabled
before = state()
print("ready", flush=True)
sys.stdin.readline()
print(state() == before, faulthandler.is_enabled(), flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain()
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        before = caught(process.pid)
        attached = inject.attach(process.pid, timeout_s=60)
        during = until(lambda: caught(process.pid))
        detach(attached)
        after = caught(process.pid)
        out, _ = process.communicate("\n")

    assert out == "True False\n"
    assert before == after != during
