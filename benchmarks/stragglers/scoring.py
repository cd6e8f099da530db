"""What `probe compare` said against what was planted."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.agent import PROBE
from benchmarks.process import plain_environment
from benchmarks.spread import table

from .job import Truth

__all__ = ["Answer", "Score", "ask"]


@dataclass(frozen=True)
class Answer:
    """The verdict as `--format json` has it, and the exit code."""

    verdict: dict[str, Any]
    exit_code: int

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.verdict["ranks"]))

    @property
    def phase(self) -> str:
        return str(self.verdict.get("where", ""))

    @property
    def share(self) -> float | None:
        return self.verdict.get("cost_share")


def ask(endpoints: Sequence[str], num_steps: int) -> Answer:
    """`probe compare` about these."""
    command = [PROBE, *(word for endpoint in endpoints for word in ("-t", endpoint))]
    command += ["compare", "--steps", str(num_steps), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, env=plain_environment(), timeout=120)
    if not done.stdout:
        raise RuntimeError(done.stderr)
    return Answer(json.loads(done.stdout)["verdict"], done.returncode)


def size_of(truth: Truth) -> str:
    if truth.what in ("nobody", "uneven"):
        return truth.what
    if truth.cost_share >= 0.10:
        return "10 % and more"
    return "5 to 10 %" if truth.cost_share >= 0.05 else "less than 5 %"


@dataclass
class Score:
    """Counts by size and by fault."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)

    def add(self, name: str, truth: Truth, answer: Answer) -> None:
        size = size_of(truth)
        wanted = tuple(truth.ranks)
        is_healthy = size in ("nobody", "uneven")
        is_right = answer.ranks == (() if is_healthy else wanted)
        has_phase = is_right and (not truth.phases or answer.phase in truth.phases)
        innocent = bool(set(answer.ranks) - set(wanted))
        for key in (size, f"{truth.kind}, {size}"):
            found = self.counts.setdefault(key, Counter())
            found["asked"] += 1
            found["rank"] += is_right
            found["phase"] += has_phase
            found["innocent"] += innocent
            if not is_healthy and is_right and answer.share is not None:
                found["estimated"] += 1
                found["close"] += abs(answer.share - truth.cost_share) <= 0.2 * truth.cost_share
        if not has_phase or innocent:
            self.misses.append(
                f"{name}: cost {truth.cost_share:.1%} ({truth.cost_s * 1e3:.1f} ms of {truth.step_s * 1e3:.1f}), phase"
                f" {'/'.join(truth.phases)}, load {truth.load:.1f} -> {answer.verdict['sentence']}"
            )

    def report(self) -> str:
        columns = ("asked", "rank", "phase", "innocent", "estimated", "close")
        rows: list[list[object]] = [[key, *(found[each] for each in columns)] for key, found in self.counts.items()]
        text = table(
            ["cost", "asked", "rank right", "and phase", "innocent rank named", "cost told", "within 20 %"], rows
        )
        return text + "\n\n" + "\n".join(f"- {miss}" for miss in self.misses)
