"""Loading of the recorder's code: compiled if possible, otherwise from sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from probe_agent import inject
from probe_agent.errors import AttachRefused
from probe_agent.inject import carried
from probe_agent.inject.threads.tracee import Tracee

from .conftest import detach, installed_pythons
from .programs import program

RECORDER = Path(inject.__file__).parent.parent / "recorder"
#: Counts what of ours is compiled in it until its standard input ends.
COUNTS = """
import sys
names = set()
def note(event, args):
    if event == "compile" and str(args[1]).startswith("<probe>"): names.add(args[1])
sys.addaudithook(note)
print("ready", flush=True)
import select
while not select.select([sys.stdin], [], [], 0)[0]: sum(range(100))
print(len(names))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "probe"


@pytest.fixture
def num_compiled(cache: Path) -> Iterator[Callable[..., int]]:
    """Return how many of our modules a program compiles that is attached to and detached from."""
    started: list[subprocess.Popen[str]] = []

    def attach_and_count(*command: str, **environment: str) -> int:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        process = subprocess.Popen([*command, "-c", COUNTS], env={**os.environ, **environment}, **pipes)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        detach(inject.attach(process.pid))
        return int(process.communicate("\n", timeout=60)[0])

    yield attach_and_count
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "python", installed_pythons(), ids=lambda path: path.split("/")[-3] + "/" + path.split("/")[-1]
)
def test_nothing_is_compiled_in_a_target(num_compiled: Callable[..., int], python: str) -> None:
    assert num_compiled(python) == 0


def other_python() -> str:
    """A Python of another version than ours."""
    ours = "/{}.{}.".format(*sys.version_info[:2])
    others = [python for python in installed_pythons() if "versions" in python and ours not in python]
    if not others:
        pytest.skip("there is no Python of another version here")
    return os.path.realpath(others[-1])


def test_a_program_of_another_name_is_not_started_to_compile_for_it(
    num_compiled: Callable[..., int], tmp_path: Path
) -> None:
    python = other_python()
    shutil.copy(python, tmp_path / "trainer")

    number = num_compiled(str(tmp_path / "trainer"), PYTHONHOME=str(Path(python).parents[1]))

    assert number == len(list(RECORDER.rglob("*.py")))


def test_code_is_kept_for_the_next_attach_unless_others_could_have_changed_it(cache: Path) -> None:
    process = Tracee(os.getpid())
    packed = carried.pack(process, RECORDER)
    (file,) = cache.iterdir()
    kept = file.read_bytes()

    file.write_bytes(kept[:-1] + b"?")
    assert carried.pack(process, RECORDER) == packed
    assert file.read_bytes() == kept

    file.write_bytes(b"?")
    file.chmod(0o622)
    assert carried.pack(process, RECORDER) == packed
    assert file.read_bytes() == kept
    assert file.stat().st_mode & 0o777 == 0o600

    began = file.stat().st_mtime_ns
    assert carried.pack(process, RECORDER) == packed
    assert file.stat().st_mtime_ns == began
    assert list(cache.iterdir()) == [file]


def test_an_attach_needs_no_cache_folder(num_compiled: Callable[..., int], cache: Path) -> None:
    cache.parent.write_text("a file is in the way")

    assert num_compiled(sys.executable) == 0


def test_a_failure_while_loading_shows_the_line_of_the_source(cache: Path, tmp_path: Path) -> None:
    recorder = tmp_path / "recorder"
    shutil.copytree(RECORDER, recorder, ignore=shutil.ignore_patterns("__pycache__"))
    boot = recorder / "boot.py"
    boot.write_text(boot.read_text() + "\nhere_it_fails = 1 / 0\n")
    code = "print('ready', flush=True)\nwhile True: sum(range(100))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with pytest.raises(AttachRefused) as refused:
                inject.attach(process.pid, recorder=recorder)
            assert process.poll() is None
        finally:
            process.kill()

    assert re.search(r"<probe>/_probe_recorder.boot.*\n +here_it_fails = 1 / 0", refused.value.hint)


#: Prints which modules of the standard library the job could find in `sys.modules` while `socket` was loaded beside it.
LENDS = """
import sys
sys.path.insert(0, sys.argv[1])
from probe_agent.activate import start
importer = start._importer("_trial", "recorder")
lent, lend = [], type(importer)._lend
type(importer)._lend = lambda self, name, module: lent.append(name) or lend(self, name, module)
importer.load("socket")
print(lent)
"""


@pytest.mark.parametrize("python", installed_pythons())
def test_a_job_that_imports_typing_meanwhile_finds_collections_abc_as_it_is(python: str) -> None:
    done = subprocess.run(
        [python, "-S", "-c", LENDS, str(RECORDER.parents[1])], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    assert "collections.abc" not in done.stdout


def test_a_job_that_iterates_over_its_modules_is_left_to_it() -> None:
    code = (
        "import atexit, re, sys, time, typing\nprint('ready', flush=True)\n"
        # One sleep in each iteration: on a busy machine, one for each module would take longer than an attach waits.
        "while True:\n for number, _ in enumerate(sys.modules.values()): number or time.sleep(0.01)\n time.sleep(0.01)"
    )
    with program(code) as process:  # it writes no traceback
        for _ in range(5):
            detach(inject.attach(process.pid))
        assert process.poll() is None


#: Puts a module into `sys.modules` and takes it out 150 times, beside a thread that iterates over them at any moment
#: and one that wants the GIL all the time. Prints what the first one raised.
ITERATES = """
import gc, random, sys, time
sys.path.insert(0, sys.argv[1])
from threading import Thread
from probe_agent.activate import start
raised = []
def spin():
    while not raised: sum(range(1000))
def iterate():
    try:
        while not raised:
            for number, _ in enumerate(sys.modules.values()): number or time.sleep(random.random() * 0.002)
            time.sleep(random.random() * 0.002)
    except RuntimeError as error: raised.append(error)
importer = start._importer("_trial", "recorder")
usual = importer._num_owners  # nobody iterates yet
type(importer)._between_iterations.__defaults__ = (100_000,)
importer.close()
del importer
gc.collect()  # it refers to `sys.modules`
for function in (spin, iterate): Thread(target=function, daemon=True).start()
sys.setswitchinterval(0.0001)
for _ in range(150):
    importer = start._importer("_trial", "recorder")
    importer._num_owners, importer._unsure_pauses = usual, 0
    importer.names, importer._hidden = [], {"_trial.module": importer}
    importer.load_all()
    importer.close()
    if raised: break
    del importer
    gc.collect()
print(*raised)
"""


def test_no_iteration_over_the_modules_begins_while_they_change() -> None:
    """Wait as long as an iteration lasts, which a busy machine prolongs: what is tested is that none begins between
    the count and the change."""
    words = [sys.executable, "-S", "-c", ITERATES, str(RECORDER.parents[1])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)

    assert (done.stdout.strip(), done.stderr) == ("", "")


#: Prints how long the end of an importer waits while the job keeps a reference to `sys.modules`: at a detach, at an
#: exit.
WAITS = """
import sys
sys.path.insert(0, sys.argv[1])
from probe_agent.activate import start
for at_exit in (False, True):
    importer, pauses = start._importer("_trial", "recorder"), []
    importer._time = type(sys)("time")
    importer._time.sleep = pauses.append
    kept = sys.modules
    importer.close(at_exit)
    del kept
    print(sum(pauses))
"""


def test_an_exit_waits_for_no_iteration_and_a_detach_not_for_ever() -> None:
    words = [sys.executable, "-S", "-c", WAITS, str(RECORDER.parents[1])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)

    detach_s, exit_s = map(float, done.stdout.split())
    assert 0.0 < detach_s < 0.5
    assert exit_s == 0.0
