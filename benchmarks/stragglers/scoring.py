"""Scores: what `probe compare` answered against what was planted."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

from benchmarks.spread import table
from probe_cli.main import run

from .cases import HEALTHY, KINDS, PHASES
from .job import Truth

__all__ = ["Answer", "Score", "ask"]

#: An estimate of the cost is close when it is off by no more than this part of the planted one.
CLOSE = 0.2
#: Measured cost, or a planted case in which no rank may be named.
SIZES = ("10 % and more", "5 to 10 %", "less than 5 %", "uneven", "nobody")


@dataclass(frozen=True)
class Answer:
    """The verdict in the form of `--format json`."""

    verdict: dict[str, Any]

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(self.verdict["ranks"])

    @property
    def share(self) -> float | None:
        """Return the estimated share of the job's time; None if the verdict has no interval for it."""
        return None if self.verdict.get("share_low") is None else self.verdict["share"]


def ask(endpoints: Sequence[str], num_steps: int) -> Answer:
    """Run `probe compare` about these in this process: starting it would take most of the time."""
    command = [word for endpoint in endpoints for word in ("-t", endpoint)]
    command += ["compare", "--steps", str(num_steps), "--format", "json", "--timeout", "60"]
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run(command)
    if not out.getvalue():
        raise RuntimeError(err.getvalue()[-500:])
    return Answer(json.loads(out.getvalue())["verdict"])


def size_of(truth: Truth) -> str:
    if truth.what in HEALTHY:
        return truth.what
    if truth.cost_share >= 0.10:
        return SIZES[0]
    return SIZES[1] if truth.cost_share >= 0.05 else SIZES[2]


@dataclass
class Score:
    """Counts by size of the cost, by kind of job and by fault."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    misses: list[str] = field(default_factory=list)

    def add(self, name: str, truth: Truth, answer: Answer) -> None:
        size = size_of(truth)
        is_healthy = truth.what in HEALTHY
        named, wanted = set(answer.ranks), set(truth.ranks)
        is_right = named == wanted and answer.verdict["state"] != "not enough data"
        has_phase = is_right and (not truth.phases or answer.verdict["where"] in truth.phases)
        headline = bool(answer.ranks) and answer.ranks[0] not in wanted
        for key in (size, f"{truth.kind}|{size}", f"{truth.what}|{size}"):
            found = self.counts.setdefault(key, Counter())
            found["asked"] += 1
            found["rank"] += is_right
            found["phase"] += has_phase
            found["innocent"] += bool(named - wanted)
            found["headline"] += headline
            found["silent"] += answer.verdict["state"] == "not enough data"
            if not is_healthy and is_right and answer.share is not None:
                found["told"] += 1
                is_close = abs(answer.share - truth.cost_share) <= CLOSE * truth.cost_share
                found["close"] += is_close
                low, high = (cost / (cost + truth.healthy_s) for cost in (truth.cost_low_s, truth.cost_high_s))
                found["within"] += is_close or low <= answer.share <= high
        if not has_phase or headline:
            self.misses.append(_miss(name, truth, answer))

    def report(self) -> str:
        columns = ("asked", "rank", "phase", "innocent", "headline", "silent", "told", "close", "within")
        names = ["cost", "cases", "rank right", "and phase", "innocent rank named"]
        names += ["as the headline", "not enough data", "cost given", "within 20 %", "or in the measured interval"]
        rows: list[list[object]] = [
            [size, *(self.counts[size][each] for each in columns)] for size in SIZES if size in self.counts
        ]
        parts = [table(names, rows)]
        for title, keys in (("job", KINDS), ("slow", PHASES)):
            rows = [[key, *(self._right(f"{key}|{size}") for size in SIZES)] for key in keys]
            parts.append(table([f"{title}: rank and phase right", *SIZES], [row for row in rows if any(row[1:])]))
        return "\n\n".join([*parts, "\n".join(f"- {miss}" for miss in self.misses)])

    def _right(self, key: str) -> str:
        found = self.counts.get(key)
        return f"{found['phase']} of {found['asked']}" if found else ""


def _miss(name: str, truth: Truth, answer: Answer) -> str:
    phases = "/".join(truth.phases) or "any phase"
    return (
        f"`{name}`: rank {','.join(map(str, truth.ranks)) or '-'}, {phases}, every {truth.every}, cost"
        f" {truth.cost_share:.1%} ({truth.cost_low_s * 1e3:.1f} to {truth.cost_high_s * 1e3:.1f} ms of"
        f" {truth.step_s * 1e3:.1f}), planted {max(truth.planted_s) * 1e3:.1f}, load {truth.load:.1f}"
        f" -> {answer.verdict['where']}: {answer.verdict['sentence']}"
    )
