"""A tour of Probe on a running job, which ends with proofs that the job was left unharmed.

Starts train_gpt.py twice with the same seed, runs `probe` against the first by PID, changes its learning rate,
and compares the two loss curves bit for bit. `make demo` runs it; it exits with 1 if a proof fails.
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
STEPS = 20_000  # more than are needed: both jobs are ended once everything is proved
STEPS_AFTER = 20

WHERE = "SELECT func, file, lineno, depth FROM python.backtrace ORDER BY depth;"
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
    """A proof failed, or the demo could not run."""


class Step(NamedTuple):
    """One line of a loss log; `loss` is the exact value as hex."""

    step: int
    loss: str
    lr: float


class Job:
    """One process that runs train_gpt.py."""

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
        """Return the steps done so far."""
        lines = self.log.read_text().splitlines(keepends=True) if self.log.exists() else []
        return [Step(**json.loads(line)) for line in lines if line.endswith("\n")]

    def wait_for_step(self, step: int) -> None:
        """Wait until the job has done that step."""

        def reached() -> bool:
            if self.process.poll() is not None:
                raise Failed(f"the job ended early:\n{self.output.read_text()}")
            return len(self.steps()) >= step

        wait_until(reached, f"step {step}")

    def footprint(self) -> tuple[int, list[str]]:
        """Return the number of its threads, and its files in shared memory."""
        process = Path(f"/proc/{self.process.pid}")
        mapped = (process / "maps").read_text().splitlines()
        files = [line.split()[-1] for line in mapped if "/probe-" in line]
        return len(list((process / "task").iterdir())), files


def wait_until(condition: Callable[[], bool], what: str, deadline_s: float = 90) -> None:
    """Poll until `condition` holds."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"{what}: not reached within {deadline_s:g} s")
        time.sleep(0.02)


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def probe(pid: int, *words: str) -> str:
    """Run one `probe` command and print it with all its output."""
    shown = [str(pid), *words] if words[0] != "list" else [*words]
    print("$ probe " + " ".join(quote(word) for word in shown), flush=True)
    began = time.monotonic()
    done = subprocess.run([str(PROBE), *shown], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(done.stdout.rstrip() + f"\n[{time.monotonic() - began:.2f} s]\n", flush=True)
    if done.returncode != 0:
        raise Failed(f"`probe {words[0]}` exited with {done.returncode}")
    return done.stdout


def quote(word: str) -> str:
    """Quote as people type: with double quotes where they suffice."""
    if word == shlex.quote(word):
        return word
    return shlex.quote(word) if any(char in word for char in '"$`\\!') else f'"{word}"'


def expect(output: str, *parts: str) -> None:
    """Fail unless the output holds each of `parts`."""
    missing = [part for part in parts if part not in output]
    if missing:
        raise Failed(f"expected to see {missing} above")


def tour(job: Job) -> None:
    """Run what a user would type against a job that was not prepared for Probe."""
    pid = job.process.pid
    say("which processes run here, and can Probe attach to this one?")
    expect(probe(pid, "list"), str(pid))
    probe(pid, "doctor")

    say("where is it? (the first command attaches)")
    expect(probe(pid, "backtrace"), "train_gpt.py", "main")
    job.wait_for_step(len(job.steps()) + 45)  # one step in 20 is recorded: at least two by now

    say("the same in SQL, then the slowest modules and the memory of the last recorded steps")
    expect(probe(pid, "query", WHERE), "train_gpt.py")
    expect(probe(pid, "query", SLOWEST), "forward", "GPT.blocks.")
    expect(probe(pid, "query", MEMORY), "peak_memory")
    expect(probe(pid, "tables"), "python.torch_trace", "python.steps")

    say("record every step, read the learning rate, and change it between two steps")
    expect(probe(pid, "config", "trace.every=1"), "trace.every")
    expect(probe(pid, "eval", READ_LR), "0.001")
    expect(probe(pid, "eval", "--at-step", CHANGE_LR), "the learning rate is 0.0001")
    job.wait_for_step(len(job.steps()) + 20)

    say("detach")
    probe(pid, "detach")


def prove_gone(job: Job, before: tuple[int, list[str]]) -> None:
    """Check that nothing of Probe is left in the process and that it keeps training."""
    wait_until(lambda: job.footprint() == before, "threads and files as before the attach", 5)
    folders = f"probe-*/{job.process.pid}-*"
    left = [path for base in ("/dev/shm", "/tmp") for path in Path(base).glob(folders)]
    if left:
        raise Failed(f"files left behind: {left}")
    step = len(job.steps())
    job.wait_for_step(step + 50)
    print(f"proved: {before[0]} threads and no file of Probe in the process, as before the attach")
    print(f"proved: after the detach the job kept training, from step {step} to {step + 50}")


def first_changed(steps: list[Step]) -> int:
    """Return the first step with another learning rate than the first one."""
    changed = next((step.step for step in steps if step.lr != steps[0].lr), None)
    if changed is None:
        raise Failed("the learning rate never changed")
    return changed


def prove_same(probed: list[Step], alone: list[Step]) -> None:
    """Check that the losses are the same bit for bit until the learning rate changed, and differ after it."""
    pairs = list(zip(probed, alone, strict=False))  # neither job has come to its end
    changed = first_changed(probed) - 1
    # A step's loss is computed before its update: the first step with the new rate still has the old loss.
    same = [ours.loss == theirs.loss for ours, theirs in pairs]
    if not all(same[: changed + 1]):
        raise Failed(f"the losses differ in step {same.index(False) + 1}, before the learning rate changed")
    if len(pairs) < changed + STEPS_AFTER or any(same[changed + 1 : changed + 11]):
        raise Failed("the new learning rate changed nothing")
    step, lr = probed[changed].step, probed[changed].lr
    print(f"proved: the losses of steps 1 to {step} are bit-identical to those of the job left alone")
    print(f"proved: step {step} was the first with learning rate {lr:g}; the losses differ from step {step + 1} on")
    shown = range(len(pairs) // 8 - 1, len(pairs), len(pairs) // 8)
    for name, steps in (("with Probe", probed), ("left alone", alone)):
        print(f"  loss {name}: " + "  ".join(f"{float.fromhex(steps[at].loss):.4f}" for at in shown))


def main() -> int:
    began = time.monotonic()
    jobs: list[Job] = []
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        try:
            jobs += [Job(Path(folder), "probed"), Job(Path(folder), "alone")]
            probed, alone = jobs
            os.setpriority(os.PRIO_PROCESS, alone.process.pid, 5)  # `probe` goes first
            print(f"$ {shlex.join(probed.command)} &   # PID {probed.process.pid}; its twin is left alone")
            probed.wait_for_step(60)
            print(probed.output.read_text().rstrip())
            before = probed.footprint()
            tour(probed)
            prove_gone(probed, before)
            probed.process.kill()
            alone.wait_for_step(min(len(probed.steps()), first_changed(probed.steps()) + STEPS_AFTER))
            prove_same(probed.steps(), alone.steps())
        except (Failed, OSError, subprocess.TimeoutExpired) as error:
            print(f"\nthe demo failed: {error}", file=sys.stderr)
            return 1
        finally:
            for job in jobs:
                job.process.kill()
                job.process.wait()
    print(f"all proofs held; {time.monotonic() - began:.0f} s on {os.cpu_count()} cores")
    return 0


if __name__ == "__main__":
    sys.exit(main())
