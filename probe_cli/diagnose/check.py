"""A check: one line of the list to go through before a long run, declared in a file of `checks/`.

It reads what a job runs with, or lets rules of `diagnose` answer where the question is the same. What nobody knows is
unknown, never ok.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from probe_agent.wire import TargetInfo

from .evidence import Evidence
from .finding import Certainty, Finding, NoEvidence, NotApplicable
from .judge import Diagnosis, asked_of
from .rule import Asked

__all__ = ["Check", "Level", "Line", "checked", "settings_of"]


class Level(Enum):
    """How a line of the list turned out, the worst first."""

    BAD = "bad"
    WARN = "warn"
    UNKNOWN = "unknown"
    OK = "ok"
    #: The question does not arise: one rank, no GPU.
    NONE = "-"


@dataclass(frozen=True)
class Line:
    """What a check says; a sentence names no rank: `ranks` do, and no ranks are all."""

    level: Level
    sentence: str
    remedy: str = ""
    ranks: tuple[int, ...] = ()
    #: Set by `checked`.
    check: str = ""


Read = Callable[[Sequence[Asked]], Iterable[Line]]


@dataclass(frozen=True)
class Check:
    """`sql` is put to each target by itself; `read` gets the rows of all, and raises NoEvidence or NotApplicable as a
    rule does. `rules` are rules of `diagnose` whose findings are lines of this check; one that only has rules needs no
    statement."""

    name: str
    #: What it asks, as one line of `--list`.
    question: str
    sql: str = ""
    read: Read | None = None
    rules: tuple[str, ...] = ()
    #: What is said if its rules find nothing; of a check without a statement of its own.
    fine: str = ""
    #: Its rows are the host's: one target of each host is asked.
    per_host: bool = False
    #: It names a live table: the recorder has to answer, which a target that hangs may not.
    is_live: bool = False

    @property
    def question_asked(self) -> Check:
        """The same under a name that no rule has."""
        return replace(self, name=f"check.{self.name}")


def checked(checks: Iterable[Check], told: Sequence[tuple[TargetInfo, Evidence]], diagnosis: Diagnosis) -> list[Line]:
    """Return the lines of every check, in their order."""
    return [replace(line, check=check.name) for check in checks for line in _lines(check, told, diagnosis)]


def _lines(check: Check, told: Sequence[tuple[TargetInfo, Evidence]], diagnosis: Diagnosis) -> list[Line]:
    """What its rules found and what it reads itself. It is ok only where no rule objects, and says which could not
    judge."""
    found = [_of_finding(finding) for finding in _every(diagnosis.findings) if finding.rule in check.rules]
    own = _of_silence(check, diagnosis) if check.read is None else _read(check, check.read, told)
    if found:
        own = [line for line in own if line.level in (Level.BAD, Level.WARN)]
    elif own and all(line.level is Level.NONE for line in own):
        return own
    unknown = [Line(Level.UNKNOWN, f"{name}: {why}") for name, why in diagnosis.unjudged.items() if name in check.rules]
    return [*found, *own, *unknown]


def _of_silence(check: Check, diagnosis: Diagnosis) -> list[Line]:
    """A line for rules that have all judged and found nothing, or had nothing to judge."""
    if any(name in diagnosis.silent for name in check.rules):
        return [Line(Level.OK, check.fine)]
    if any(name in diagnosis.unjudged for name in check.rules):
        return []
    return [Line(Level.NONE, why) for name, why in diagnosis.inapplicable.items() if name in check.rules][:1]


def _read(check: Check, read: Read, told: Sequence[tuple[TargetInfo, Evidence]]) -> list[Line]:
    name = check.question_asked.name
    asked = asked_of(check.question_asked, told)
    if not asked:
        why = next((one.failed[name] for _, one in told if name in one.failed), "it was not asked")
        return [Line(Level.UNKNOWN, why)]
    try:
        lines = list(read(asked))
    except NoEvidence as missing:
        return [Line(Level.UNKNOWN, str(missing))]
    except NotApplicable as reason:
        return [Line(Level.NONE, str(reason))]
    if any(line.level in (Level.BAD, Level.WARN) for line in lines):
        return [line for line in lines if line.level is not Level.OK]
    silent = [one for one in told if name in one[1].failed]
    if silent:
        ranks = tuple(sorted(target.rank or 0 for target, _ in silent))
        lines.append(Line(Level.UNKNOWN, silent[0][1].failed[name], ranks=ranks))
    return lines


def _of_finding(finding: Finding) -> Line:
    level = Level.BAD if finding.certainty is Certainty.CERTAIN else Level.WARN
    remedy = finding.advice[0] if finding.advice else finding.try_first
    return Line(level, finding.sentence, remedy, finding.ranks)


def _every(findings: Sequence[Finding]) -> list[Finding]:
    return [each for one in findings for each in (one, *_every(one.explains))]


def settings_of(one: Asked, kind: str) -> Mapping[str, str]:
    """Return the values of `process.env` of one kind that a check has asked for, by name."""
    return {row["name"]: str(row["value"] or "") for row in one.rows if row["kind"] == kind}
