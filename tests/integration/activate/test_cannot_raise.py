"""Whatever is wrong with Probe's installation or its variables, the interpreter starts and the job runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import ACTIVATE

TRAINS = "print('trained')"
PACKAGE = ACTIVATE.parent


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the `.pth` file and a copy of our package, which stays as it is."""
    environment = tmp_path_factory.mktemp("whole")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    install(environment / "bin" / "python")
    return environment / "bin" / "python"


@pytest.fixture
def to_break(bare_python: Path) -> Iterator[Path]:
    """Another one, for the test to break."""
    site = site_of(bare_python)
    shutil.rmtree(site, ignore_errors=True)
    install(bare_python)
    yield bare_python
    shutil.rmtree(site)
    site.mkdir()  # other tests have this Python, too


def install(python: Path) -> None:
    site = site_of(python)
    shutil.copytree(PACKAGE, site / "probe_agent", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("probe_training.pth", "_probe_training.py"):
        shutil.copy(ACTIVATE / name, site)


def site_of(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python*")) / "site-packages"


def run(*command: str | Path, stderr: int = subprocess.PIPE, **environ: str) -> subprocess.CompletedProcess[str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PROBE", "PYTHON"))}
    return subprocess.run(
        [str(word) for word in command],
        env=plain | environ,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        errors="surrogateescape",
        timeout=60,
    )


def has_one_line_at_most(text: str) -> bool:
    return text == "" or (text.startswith("probe: the recorder is not started: ") and text.count("\n") == 1)


@pytest.mark.situation("PROBE unset", "nothing of ours is imported")
@pytest.mark.parametrize("flags", ["", "-S", "-I", "-E", "-s", "-B", "-O", "-X dev", "-W error"])
@pytest.mark.parametrize("probe", [None, "", "0", "1"])
def test_no_flag_of_python_makes_us_say_or_raise_anything(python: Path, flags: str, probe: str | None) -> None:
    code = "import sys; print([name for name in list(sys.modules) if 'probe' in name.lower() and '.' not in name])"
    asked = {} if probe is None else {"PROBE": probe}

    done = run(python, *flags.split(), "-c", code, **asked)

    assert (done.returncode, done.stderr) == (0, "")
    is_on = probe == "1" and flags != "-S"
    assert ("probe_agent" in done.stdout) is is_on


def test_at_an_exit_the_recorders_thread_sleeps_and_does_not_end_beside_the_finalization(python: Path) -> None:
    code = (
        "import atexit, os, time\n"
        "import probe_agent\n"
        "def look():\n    time.sleep(0.2)\n    print(len(os.listdir('/proc/self/task')))\n"
        "atexit.register(look)\n"  # before the recorder registers its own: it runs after that
        "probe_agent.start()\n"
        "time.sleep(0.5)"
    )

    done = run(python, "-X", "dev", "-c", code)

    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


@pytest.mark.parametrize(
    "value", ["2", "yes", " ", "1 ", "ALL", "*", "\udcff\udcfe", "'; exit()", "x" * 100_000, "1\n2"]
)
@pytest.mark.parametrize("name", ["PROBE", "PROBE_SCRIPT", "PROBE_RANKS", "PROBE_LISTEN"])
def test_no_value_of_a_variable_stops_the_job(python: Path, name: str, value: str) -> None:
    done = run(python, "-c", TRAINS, **{"PROBE": "1", name: value})

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert has_one_line_at_most(done.stderr)


@pytest.mark.situation("PROBE=1, an ignored variable", "one line on stderr says so; the job is recorded")
def test_an_ignored_setting_is_reported_in_one_line(python: Path) -> None:
    done = run(python, "-c", "import time; time.sleep(2); print('trained')", PROBE="1", PROBE_STEPS_ROWS="500")

    said = "probe: PROBE_STEPS_ROWS=500 is ignored: invalid value '500' for steps.rows; use 1000 or more\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", said)


@pytest.mark.situation("PROBE=1, Probe broken, missing or zipped", "one line on stderr; the job runs")
@pytest.mark.parametrize("probe", [None, "1"])
@pytest.mark.parametrize("damage", ["missing", "no syntax", "foreign", "no recorder", "no boot", "zipped"])
def test_no_damage_to_our_package_stops_the_job(to_break: Path, damage: str, probe: str | None) -> None:
    package = site_of(to_break) / "probe_agent"
    if damage == "missing":
        shutil.rmtree(package)
    elif damage == "no syntax":
        (package / "activate" / "start.py").write_text("def (")
    elif damage == "foreign":
        (package / "__init__.py").write_text("raise RuntimeError('somebody else has this name')")
    elif damage == "no recorder":
        (package / "recorder" / "guest" / "at_exit.py").unlink()
    elif damage == "no boot":
        (package / "recorder" / "boot.py").write_text("import no_such_module_anywhere")
    else:
        with zipfile.ZipFile(site_of(to_break) / "all.zip", "w") as archive:
            for path in package.rglob("*.py"):
                archive.write(path, path.relative_to(package.parent))
        shutil.rmtree(package)
        (site_of(to_break) / "a_zip.pth").write_text(str(site_of(to_break) / "all.zip"))
    asked = {} if probe is None else {"PROBE": probe}

    # The recorder starts on a thread of its own: what it says may come while the job runs.
    done = run(to_break, "-c", TRAINS + "; import time; time.sleep(0.3)" * (damage == "no boot"), **asked)

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert has_one_line_at_most(done.stderr)
    assert (done.stderr != "") is (probe == "1")


@pytest.mark.parametrize("home", ["/proc", "/nonexistent", ""])
def test_no_home_is_needed(python: Path, home: str) -> None:
    done = run(python, "-c", TRAINS, PROBE="1", HOME=home, XDG_STATE_HOME=home)

    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


@pytest.mark.parametrize("value", ["1", "yes"])
@pytest.mark.parametrize("redirect", ["2>/dev/full", "2>&-", "1>&- 2>&-", "0<&- 2>&-"])
def test_an_unwritable_stderr_does_not_stop_the_job(to_break: Path, redirect: str, value: str, tmp_path: Path) -> None:
    shutil.rmtree(site_of(to_break) / "probe_agent" / "recorder")  # so that there is something to say
    code = f"import pathlib; pathlib.Path({str(tmp_path / 'done')!r}).write_text('trained')"

    done = run("sh", "-c", f'exec "$0" -c "$1" {redirect}', to_break, code, PROBE=value)

    assert (tmp_path / "done").read_text() == "trained"
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.situation("PROBE=1, no folder to write to", "one line on stderr; the job runs")
def test_a_host_without_a_writable_folder_is_reported(python: Path) -> None:
    mounts = "mount -t tmpfs -o ro none /dev/shm && mount -t tmpfs -o ro none /tmp"
    if run("unshare", "-m", "true").returncode:
        pytest.skip("may not unshare")
    inside = Path("/proc/self/cwd") / "bin" / "python"  # its folder is below /tmp, which is about to be hidden

    done = run("sh", "-c", f'cd "$0" && exec unshare -m sh -c "{mounts}; exec {inside} -c \\"$1\\""',
               python.parents[1], TRAINS, PROBE="1")  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert "no folder for the recorder's files" in done.stderr
    assert has_one_line_at_most(done.stderr)
