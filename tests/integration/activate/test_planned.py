"""PROBE=1: the job's own processes become targets; its launchers, workers and tools do not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import PATH_ENTRY, WAITS, is_chosen, started, targets, wait_for_target

WORKERS = """
import os, sys, torch
from torch.utils.data import DataLoader

class Pids(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return os.getpid()

if __name__ == "__main__":
    sys.stdin.readline()
    workers = sorted({int(pid) for pid in DataLoader(Pids(), num_workers=2, multiprocessing_context=sys.argv[1])})
    print(*workers, flush=True)
    sys.stdin.read()
"""


@pytest.mark.situation("PROBE=1 python train.py", "a target from its first line on")
def test_a_script_becomes_a_target_and_says_who_it_is(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(WAITS)

    with started(sys.executable, str(script), RANK="3", WORLD_SIZE="4", LOCAL_RANK="1") as process:
        assert process.stdout.readline() == f"{process.pid}\n"
        identity = wait_for_target(process.pid)
        out, err = process.communicate("", timeout=20)

    assert (identity["rank"], identity["world_size"], identity["local_rank"]) == (3, 4, 1)
    assert identity["how"] == "planned"
    assert identity["command"][-1] == str(script)
    assert (out, err, process.returncode) == ("", "", 0)


def test_without_probe_set_nothing_of_ours_is_imported(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import sys; print([name for name in sys.modules if 'probe' in name and name != 'sitecustomize'])"
    )

    with started(sys.executable, str(script), PROBE="") as process:
        out, err = process.communicate(timeout=20)

    assert (out, err) == ("[]\n", "")


def test_the_targets_own_sitecustomize_still_runs(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.from_the_job = 42")
    script = tmp_path / "train.py"
    script.write_text("import sitecustomize; print(from_the_job, sitecustomize.__file__)")

    with started(sys.executable, str(script), PYTHONPATH=f"{PATH_ENTRY}:{tmp_path}") as process:
        out, err = process.communicate(timeout=20)

    assert (out, err) == (f"42 {tmp_path / 'sitecustomize.py'}\n", "")


@pytest.mark.situation("PROBE=1, sys.path is changed while Python starts", "a target; every import finds its module")
def test_a_path_that_changes_meanwhile_is_no_obstacle(tmp_path):
    # An import looks along sys.path entry by entry; what is taken out meanwhile makes it overlook the next one.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, time\nend = time.monotonic() + 0.2\n"
        "while time.monotonic() < end:\n"
        "    entry = sys.path.pop(0)\n    sys.path.append(entry)\n    time.sleep(0.00001)\n"
    )

    for _ in range(3):
        with started(sys.executable, "-c", WAITS, PYTHONPATH=f"{PATH_ENTRY}:{tmp_path}") as process:
            process.stdout.readline()
            wait_for_target(process.pid)
            out, err = process.communicate("", timeout=30)

        assert (out, err) == ("", "")


@pytest.mark.torch
@pytest.mark.situation("PROBE=1, a DataLoader with workers", "the workers are not targets")
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_loader_workers_are_no_targets_and_leave_their_parents_rings_alone(tmp_path, context):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(WORKERS)

    with started(sys.executable, str(script), context) as process:
        wait_for_target(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        workers = [int(pid) for pid in process.stdout.readline().split()]
        known = targets()
        process.communicate("", timeout=30)

    assert len(workers) == 2
    assert process.pid in known
    assert not set(workers) & set(known)


@pytest.mark.torch
@pytest.mark.situation("PROBE=1 torchrun", "every rank is a target, the supervisor is not")
def test_the_ranks_of_torchrun_are_targets_and_torchrun_is_not(tmp_path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    # One write a line: the two ranks share a pipe.
    script.write_text("import os, time\nos.write(1, b'%d\\n' % os.getpid())\ntime.sleep(60)")

    with started(
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=0", str(script)
    ) as process:
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        identities = [wait_for_target(pid) for pid in ranks]
        known = targets()
        for pid in ranks:  # they would outlive torchrun, with its pipes in their hands
            os.kill(pid, signal.SIGKILL)

    assert process.pid not in known
    assert sorted(identity["rank"] for identity in identities) == [0, 1]
    assert {identity["world_size"] for identity in identities} == {2}


@pytest.mark.situation("PROBE=1, a subprocess of a target", "no target")
def test_a_subprocess_of_a_target_is_no_target(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess, sys\nsys.stdin.readline()\n"
        "subprocess.run([sys.executable, '-c', 'import os; print(os.getpid(), flush=True); input()'])\n"
    )

    with started(sys.executable, str(script)) as process:
        wait_for_target(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        known = targets()
        process.communicate("\n", timeout=20)

    assert child not in known


@pytest.mark.parametrize("delay_s", [0.0, 0.02, 0.1, 0.3])
def test_a_process_that_ends_early_ends_as_it_would_alone(tmp_path, delay_s):
    script = tmp_path / "train.py"
    script.write_text(f"import sys, time; time.sleep({delay_s}); sys.exit(7)")

    codes = []
    for _ in range(6):
        with started(sys.executable, str(script)) as process:
            out, err = process.communicate(timeout=20)
            codes.append((process.returncode, out, err))

    assert set(codes) == {(7, "", "")}


def test_the_rings_of_a_job_that_has_ended_stay(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.stdin.read()")

    with started(sys.executable, str(script)) as process:
        wait_for_target(process.pid)
        process.communicate("", timeout=20)

    assert process.pid in targets()


MODULE = {"package/__init__.py": "", "package/train.py": WAITS}


@pytest.mark.situation("PROBE=1 python -m package.train", "a target")
@pytest.mark.parametrize("words", [["-m", "package.train"], ["-um", "package.train"], ["-mpackage.train"]])
def test_a_module_becomes_a_target(tmp_path, words):
    write(tmp_path, MODULE)

    with started(sys.executable, *words, PYTHONPATH=f"{PATH_ENTRY}:{tmp_path}") as process:
        pid = int(process.stdout.readline())

        assert is_chosen(pid)


@pytest.mark.situation(
    "PROBE_SCRIPT=train_*.py", "a target only where the script, or the module after -m, is so called"
)
@pytest.mark.parametrize(
    ("pattern", "words", "is_meant"),
    [
        ("train.py", ["train.py"], True),
        ("tr*.py", ["train.py"], True),
        ("train_*.py", ["train.py"], False),
        ("train.py", ["-u", "-W", "ignore", "train.py"], True),
        ("package.train", ["-m", "package.train"], True),
        ("train.py", ["-m", "package.train"], False),
        ("train.py", ["-c", WAITS, "train.py"], False),
    ],
)
def test_a_pattern_chooses_scripts_and_modules_by_name(tmp_path, pattern, words, is_meant):
    write(tmp_path, {**MODULE, "train.py": WAITS})
    words = [str(tmp_path / word) if word == "train.py" else word for word in words]

    with started(sys.executable, *words, PROBE_SCRIPT=pattern, PYTHONPATH=f"{PATH_ENTRY}:{tmp_path}") as process:
        pid = int(process.stdout.readline())

        assert is_chosen(pid) is is_meant


@pytest.mark.situation("PROBE_RANKS=0,4-7", "a target only where RANK is one of these")
@pytest.mark.parametrize(
    ("ranks", "rank", "is_meant"),
    [("0,4-7", "0", True), ("0,4-7", "5", True), ("0, 4-7", "7", True), ("0,4-7", "3", False), ("1", "", False),
     ("0", "", True)],
)  # fmt: skip
def test_ranks_can_be_chosen(ranks, rank, is_meant):
    with started(sys.executable, "-c", WAITS, PROBE_RANKS=ranks, RANK=rank) as process:
        pid = int(process.stdout.readline())

        assert is_chosen(pid) is is_meant


@pytest.mark.situation("PROBE or a selector with an invalid value", "one line on stderr; the job runs unrecorded")
@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PROBE": "yes"}, "PROBE='yes': it takes 1 (this process), all (its children too) or 0"),
        ({"PROBE": "train.py"}, "PROBE='train.py'"),
        ({"PROBE_SCRIPT": "src/train.py"}, "PROBE_SCRIPT='src/train.py': it takes the name"),
        ({"PROBE_RANKS": "4-1"}, "PROBE_RANKS='4-1': it takes ranks and ranges"),
        ({"PROBE_RANKS": "0;1"}, "PROBE_RANKS='0;1'"),
        ({"PROBE_RANKS": "rank:0"}, "PROBE_RANKS='rank:0'"),
        ({"PROBE_LISTEN": "8080"}, "cannot listen on 8080; it takes HOST:PORT"),
        ({"PROBE_LISTEN": "192.0.2.1:8080"}, "cannot listen on 192.0.2.1:8080: Cannot assign requested address"),
    ],
)
def test_a_bad_value_is_one_line_on_stderr_and_no_recorder(variables, says):
    with started(sys.executable, "-c", "import os; print(os.getpid())", **variables) as process:
        out, err = process.communicate(timeout=30)

    assert err.startswith("probe: the recorder is not started: ")
    assert says in err
    assert err.count("\n") == 1
    assert process.returncode == 0
    assert not is_chosen(int(out))


def test_launchers_and_tools_say_nothing_of_bad_values():
    with started(sys.executable, "-m", "pip", "--version", PROBE="yes") as process:
        _, err = process.communicate(timeout=60)

    assert err == ""


def test_a_child_started_in_the_first_line_knows_whose_child_it_is():
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WAITS!r}])"

    with started(sys.executable, "-c", child) as process:
        pid = int(process.stdout.readline())

        assert is_chosen(process.pid)
        assert not is_chosen(pid)


CHILDREN = """
import multiprocessing, os, subprocess, sys

def child(pipe):
    pipe.send(os.getpid())
    sys.stdin.read() if pipe.poll(60) else None

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    ours, theirs = context.Pipe()
    process = context.Process(target=child, args=(theirs,))
    process.start()
    print(ours.recv(), flush=True)
    sys.stdin.read()
    ours.send("end")
    process.join()
"""


@pytest.mark.situation("PROBE=1, multiprocessing by fork, spawn or fork server", "the children are not targets")
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing_are_no_targets(tmp_path, context):
    write(tmp_path, {"train.py": CHILDREN})

    with started(sys.executable, str(tmp_path / "train.py"), context) as process:
        child = int(process.stdout.readline())
        wait_for_target(process.pid)
        chosen = [pid for pid in below(process.pid) if is_chosen(pid)]
        out, err = process.communicate("", timeout=60)

    assert chosen == []
    assert child != process.pid
    assert (out, err, process.returncode) == ("", "", 0)


@pytest.mark.situation("PROBE=all, multiprocessing by fork, spawn or fork server", "the children are targets too")
@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_with_all_the_children_of_multiprocessing_are_targets_and_its_helpers_are_not(tmp_path, context):
    write(tmp_path, {"train.py": CHILDREN})

    with started(sys.executable, str(tmp_path / "train.py"), context, PROBE="all", PROBE_SCRIPT="train.py") as process:
        child = int(process.stdout.readline())
        identity = wait_for_target(child)
        wait_for_target(process.pid)
        chosen = {pid for pid in below(process.pid) if is_chosen(pid)}
        out, err = process.communicate("", timeout=60)

    assert identity["how"] == "planned"
    assert chosen == {child}
    assert (out, err, process.returncode) == ("", "", 0)


def test_with_all_a_child_that_becomes_another_program_leaves_nothing():
    code = "import os\nif not (pid := os.fork()): os.execv('/bin/true', ['true'])\nos.waitpid(pid, 0); print(pid)"

    with started(sys.executable, "-c", code, PROBE="all") as process:
        out, err = process.communicate(timeout=30)

    assert not is_chosen(int(out))
    assert err == ""


@pytest.mark.situation("a target becomes another Python program by exec", "a target again")
def test_a_target_that_execs_itself_is_a_target_again(tmp_path):
    write(tmp_path, {"train.py": WAITS})
    code = "import os, sys; sys.stdin.readline(); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"

    with started(sys.executable, "-c", code, str(tmp_path / "train.py")) as process:
        first = wait_for_target(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert int(process.stdout.readline()) == process.pid
        while (second := wait_for_target(process.pid)) == first:
            pass
        out, err = process.communicate("", timeout=30)

    assert second["command"][-1] == str(tmp_path / "train.py")
    assert (out, err) == ("", "")


def test_an_environment_without_probe_is_served_by_the_start_file_of_probe_run(bare_python):
    # The start takes its modules out a moment after the target can be seen.
    code = (
        f"{WAITS}import time; ends = time.monotonic() + 10\n"
        "ours = lambda: [name for name in sys.modules if 'probe_a' in name]\n"
        "while ours() and time.monotonic() < ends: time.sleep(0.01)\n"
        "print(ours())"
    )

    with started(str(bare_python), "-c", code) as process:
        process.stdout.readline()
        wait_for_target(process.pid)
        out, err = process.communicate("", timeout=30)

    assert (out, err) == ("[]\n", "")


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.situation("PROBE=all, a DataLoader with workers", "the workers are targets too")
def test_with_all_loader_workers_are_targets(tmp_path):
    pytest.importorskip("torch")
    write(
        tmp_path, {"train.py": WORKERS.replace("return os.getpid()", "import time; time.sleep(2); return os.getpid()")}
    )

    with started(sys.executable, str(tmp_path / "train.py"), "fork", PROBE="all") as process:
        process.stdin.write("go\n")
        process.stdin.flush()
        workers = [int(pid) for pid in process.stdout.readline().split()]
        known = targets()
        out, err = process.communicate("", timeout=60)

    assert len(workers) == 2
    assert set(workers) <= set(known)
    assert (out, err, process.returncode) == ("", "", 0)


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.situation("PROBE=1 or all, inductor's compile workers", "not targets")
def test_the_compile_workers_of_inductor_are_no_targets(tmp_path):
    pytest.importorskip("torch")
    code = """
import os, sys
from torch._inductor.compile_worker.subproc_pool import SubprocPool
if __name__ == "__main__":
    pool = SubprocPool(2)
    print(pool.submit(os.getpid).result(), flush=True)
    sys.stdin.read()
    pool.shutdown()
"""
    write(tmp_path, {"train.py": code})

    with started(sys.executable, str(tmp_path / "train.py"), PROBE="all") as process:
        worker = int(process.stdout.readline())
        workers = below(process.pid)
        chosen = [pid for pid in workers if is_chosen(pid)]
        process.communicate("", timeout=60)

    assert worker in workers
    assert chosen == []


@pytest.mark.torch
@pytest.mark.situation("PROBE=1 accelerate launch", "every rank is a target, the launcher is not")
@pytest.mark.parametrize("launch", [[str(Path(sys.executable).parent / "accelerate"), "launch"],
                                    ["-m", "accelerate.commands.launch"]], ids=["accelerate", "module"])  # fmt: skip
def test_the_process_that_accelerate_launches_is_a_target_and_accelerate_is_not(tmp_path, launch):
    pytest.importorskip("accelerate")
    write(tmp_path, {"train.py": WAITS})
    simple = [
        "--cpu",
        "--num_processes",
        "1",
        "--num_machines",
        "1",
        "--mixed_precision",
        "no",
        "--dynamo_backend",
        "no",
    ]

    with started(sys.executable, *launch, *simple, str(tmp_path / "train.py"), HF_HOME=str(tmp_path)) as process:
        trainer = int(process.stdout.readline())
        wait_for_target(trainer)

        assert trainer != process.pid
        assert not is_chosen(process.pid)


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def below(pid: int) -> list[int]:
    """Return all descendants of a process."""
    parents = {}
    for line in subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    ).stdout.splitlines():
        child, parent = map(int, line.split())
        parents.setdefault(parent, []).append(child)
    found = parents.get(pid, [])
    for child in found:
        found.extend(parents.get(child, []))
    return found
