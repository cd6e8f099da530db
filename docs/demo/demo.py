"""Show Probe on a training that is already running, and prove that it left the training unharmed.

Starts train_gpt.py twice with the same seed, talks to the first by PID with the `probe` command line, changes
its learning rate on the way, and compares the two loss curves bit for bit. Run by `make demo`; exits with 1
when one of its proofs fails.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
PROBE = Path(sys.executable).parent / "probe"
STEPS = 1200

WHERE = "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth LIMIT 10;"
SLOWEST = """\
SELECT module, stage, COUNT(*) AS count, AVG(duration) AS avg_time, SUM(duration) AS total_time FROM python.torch_trace
 WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY module, stage ORDER BY total_time DESC LIMIT 10;"""  # noqa: E501
MEMORY = """\
SELECT step, MAX(allocated) AS peak_memory, MAX(allocated) - MIN(allocated) AS memory_range FROM python.torch_trace
 WHERE step > (SELECT MAX(step) - 20 FROM python.torch_trace) GROUP BY step ORDER BY step;"""
READ_LR = "optimizer.param_groups[0]['lr']"
CHANGE_LR = """
for group in optimizer.param_groups:
    group['lr'] *= 0.1
print(f'after step {step} the learning rate is', optimizer.param_groups[0]['lr'])"""


class Failed(Exception):
    """A proof did not hold, or the demo could not be run."""


class Step(NamedTuple):
    """One line of a loss log; `loss` is the exact number as hex."""

    step: int
    loss: str
    lr: float


class Training:
    """train_gpt.py in a process of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.jsonl"
        self.output = folder / f"{name}.txt"
        self.command = ["python", "docs/demo/train_gpt.py", "--steps", str(STEPS), "--seed", "7"]
        self.process = subprocess.Popen(
            [sys.executable, *self.command[1:], "--loss-log", str(self.log)],
            stdout=self.output.open("w"),
            stderr=subprocess.STDOUT,
            cwd=HERE.parent.parent,
        )

    def steps(self) -> list[Step]:
        """The steps done so far."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return [Step(**json.loads(line)) for line in lines if line.endswith("\n")]

    def wait_for_step(self, step: int) -> None:
        """Until the training has done that step."""

        def reached() -> bool:
            if self.process.poll() not in (None, 0):
                raise Failed(f"the training ended early:\n{self.output.read_text()}")
            return len(self.steps()) >= step

        wait_until(reached, f"step {step}")

    def footprint(self) -> tuple[int, list[str]]:
        """Its number of threads, and its files in shared memory."""
        process = Path(f"/proc/{self.process.pid}")
        mapped = (process / "maps").read_text().splitlines()
        files = [line.split()[-1] for line in mapped if "/probe-" in line]
        return len(list((process / "task").iterdir())), files


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 90) -> None:
    """Look again and again until `condition` holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"waited {deadline_s:g} s in vain for {what}")
        time.sleep(0.02)


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def probe(pid: int, *words: str) -> str:
    """Run one command of the `probe` command line and show it with everything it says."""
    shown = [str(pid), *words] if words[0] != "list" else [*words]
    print("$ probe " + " ".join(quote(word) for word in shown), flush=True)
    began = time.monotonic()
    done = subprocess.run([str(PROBE), *shown], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout.rstrip() + f"\n[{time.monotonic() - began:.2f} s]\n", flush=True)
    if done.returncode != 0:
        raise Failed(f"`probe {words[0]}` exited with {done.returncode}")
    return done.stdout


def quote(word: str) -> str:
    """As one would type it: double quotes where they do."""
    if word == shlex.quote(word):
        return word
    return shlex.quote(word) if any(char in word for char in '"$`\\!') else f'"{word}"'


def expect(output: str, *parts: str) -> None:
    """Each of `parts` must be in what a command printed."""
    missing = [part for part in parts if part not in output]
    if missing:
        raise Failed(f"expected to see {missing} above")


def visit(training: Training) -> None:
    """The tour: everything a user would type, against a training that knows nothing of Probe."""
    pid = training.process.pid
    say("which trainings run here, and can we attach to this one?")
    expect(probe(pid, "list"), str(pid))
    probe(pid, "doctor")

    say("where is it? (the first command attaches)")
    expect(probe(pid, "backtrace"), "train_gpt.py", "main")
    training.wait_for_step(len(training.steps()) + 45)  # one step in 20 is recorded: two of them now

    say("the same with SQL, then the slowest modules and the memory of the last recorded steps")
    expect(probe(pid, "query", WHERE), "train_gpt.py")
    expect(probe(pid, "query", SLOWEST), "forward", "GPT.blocks.")
    expect(probe(pid, "query", MEMORY), "peak_memory")
    expect(probe(pid, "tables"), "python.torch_trace", "python.steps")

    say("record every step from now on, read the learning rate, and change it between two steps")
    expect(probe(pid, "config", "trace.every=1"), "trace.every")
    expect(probe(pid, "eval", READ_LR), "0.001")
    expect(probe(pid, "eval", "--at-step", CHANGE_LR), "the learning rate is 0.0001")
    training.wait_for_step(len(training.steps()) + 20)

    say("leave")
    probe(pid, "detach")


def prove_gone(training: Training, before: tuple[int, list[str]]) -> None:
    """Nothing of ours is left in the process, and it goes on training."""
    wait_until(lambda: training.footprint() == before, "threads and files as before the attach", 5)
    folders = f"probe-*/{training.process.pid}-*"
    left = [path for base in ("/dev/shm", "/tmp") for path in Path(base).glob(folders)]
    if left:
        raise Failed(f"left behind: {left}")
    step = len(training.steps())
    training.wait_for_step(step + 50)
    print(f"proved: {before[0]} threads and no file of ours in the process, as before the attach")
    print(f"proved: the training went on, from step {step} to step {step + 50} and further")


def prove_same(probed: list[Step], alone: list[Step]) -> None:
    """Bit for bit the same losses until the learning rate changed, others after it."""
    if len(probed) != STEPS or len(alone) != STEPS:
        raise Failed(f"{len(probed)} and {len(alone)} steps instead of {STEPS}")
    pairs = list(zip(probed, alone, strict=True))
    changed = next((i for i, (ours, theirs) in enumerate(pairs) if ours.lr != theirs.lr), None)
    if changed is None:
        raise Failed("the learning rate never changed")
    # A step's loss is computed before its update: the first step with the new rate still has the old loss.
    same = [ours.loss == theirs.loss for ours, theirs in pairs]
    if not all(same[: changed + 1]):
        raise Failed(f"the losses differ in step {same.index(False) + 1}, before the learning rate changed")
    if any(same[changed + 1 : changed + 11]):
        raise Failed("the new learning rate changed nothing")
    step, lr = probed[changed].step, probed[changed].lr
    print(f"proved: the losses of steps 1 to {step} are bit-identical to those of the training left alone")
    print(f"proved: step {step} was the first with learning rate {lr:g}; from step {step + 1} on they differ")
    for name, steps in (("with Probe", probed), ("left alone", alone)):
        shown = {s.step: f"{float.fromhex(s.loss):.4f}" for s in steps if s.step % (STEPS // 8) == 0}
        print(f"  loss {name}: " + "  ".join(shown.values()))


def main() -> int:
    began = time.monotonic()
    trainings: list[Training] = []
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        try:
            trainings += [Training(Path(folder), "probed"), Training(Path(folder), "alone")]
            probed, alone = trainings
            os.setpriority(os.PRIO_PROCESS, alone.process.pid, 5)  # let `probe` go first
            print(f"$ {shlex.join(probed.command)} &   # PID {probed.process.pid}; its twin is left alone")
            probed.wait_for_step(60)
            print(probed.output.read_text().rstrip())
            before = probed.footprint()
            visit(probed)
            prove_gone(probed, before)
            for training in trainings:
                if training.process.wait(timeout=120):
                    raise Failed(f"a training failed:\n{training.output.read_text()}")
            prove_same(probed.steps(), alone.steps())
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            print(f"\nthe demo failed: {error}", file=sys.stderr)
            return 1
        finally:
            for training in trainings:
                training.process.kill()
                training.process.wait()
    print(f"everything held; {time.monotonic() - began:.0f} s on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
