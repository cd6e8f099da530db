"""What stacks, output and findings look like in a notebook: text, and HTML in which nothing of a target is markup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from probe_agent.wire import Backtrace
from probe_cli.cluster.stacks import fold, threads_of
from probe_cli.diagnose import Diagnosis, Finding
from probe_cli.render.stacks import stack_lines, tree_lines
from probe_cli.text import by_reason, num_ranks, percent, seconds

__all__ = ["Findings", "Output", "Stacks", "notes_html"]


def notes_html(notes: Iterable[str], unanswered: Iterable[str] = ()) -> str:
    """Remarks below what is shown; those who did not answer stand out."""
    missing = "".join(f"<p><b>{escape(said)}</b></p>" for said in unanswered)
    return missing + "".join(f"<p><i>{escape(note)}</i></p>" for note in notes)


@dataclass(frozen=True)
class Stacks:
    """Stacks of one target, or of several as one tree. `by_rank` has them all; one without a rank by
    its PID."""

    by_rank: Mapping[int, Backtrace]
    unanswered: Sequence[str] = ()
    all_threads: bool = False

    @property
    def notes(self) -> list[str]:
        return list(dict.fromkeys(note for taken in self.by_rank.values() for note in taken.notes))

    def __repr__(self) -> str:
        return "\n".join([*self._lines(), *self.notes, *self.unanswered])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(chr(10).join(self._lines()))}</pre>" + notes_html(self.notes, self.unanswered)

    def _lines(self) -> list[str]:
        taken = list(self.by_rank.values())
        if len(taken) == 1:
            return list(stack_lines(taken[0], colour=False))
        tree = fold(
            (rank, name, thread.frames)
            for rank, one in self.by_rank.items()
            for name, thread in threads_of(one, all_threads=self.all_threads)
        )
        return list(tree_lines(tree, colour=False))


@dataclass(frozen=True)
class Output:
    """What code has printed in each target, the value of its last expression included. `failed` are those in which it
    raised, or was stopped."""

    by_endpoint: Mapping[str, str]
    failed: Sequence[str] = ()
    unanswered: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The output of the only target, or of all, each under its name."""
        if len(self.by_endpoint) == 1:
            return next(iter(self.by_endpoint.values()))
        return "\n".join(f"== {endpoint} ==\n{text}" for endpoint, text in self.by_endpoint.items())

    def __repr__(self) -> str:
        return "\n".join([self.text.rstrip("\n"), *self.notes, *self.unanswered])

    def _repr_html_(self) -> str:
        shown = "".join(
            (f"<p><b>{escape(endpoint)}{' raised' if endpoint in self.failed else ''}</b></p>" if self._several else "")
            + f"<pre>{escape(text)}</pre>"
            for endpoint, text in self.by_endpoint.items()
        )
        return shown + notes_html(self.notes, self.unanswered)

    @property
    def _several(self) -> bool:
        return len(self.by_endpoint) > 1


@dataclass(frozen=True)
class Findings:
    """What is wrong with the job. `unjudged` are the rules that lack evidence: they are not counted as fine."""

    diagnosis: Diagnosis
    unanswered: Sequence[str] = field(default=())

    @property
    def findings(self) -> Sequence[Finding]:
        return self.diagnosis.findings

    @property
    def unjudged(self) -> Mapping[str, str]:
        return self.diagnosis.unjudged

    def __len__(self) -> int:
        return len(self.findings)

    def __repr__(self) -> str:
        lines = [self._summary]
        for one in self.findings:
            lines += ["", one.sentence, f"  {_about(one)}"]
            lines += [f"  seen: {seen}" for seen in one.evidence]
            lines += [f"  try first: {one.try_first}"] * bool(one.try_first)
        return "\n".join([*lines, *self.unanswered])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td><b>{escape(one.sentence)}</b><br>{escape(_about(one))}</td>"
            f"<td>{'<br>'.join(map(escape, one.evidence))}</td><td>{escape(one.try_first)}</td></tr>"
            for one in self.findings
        )
        head = "<tr><th>finding</th><th>seen</th><th>try first</th></tr>"
        shown = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>" if rows else ""
        notes = [f"not judged: {line}" for line in by_reason(self.unjudged)]
        return f"<p>{escape(self._summary)}</p>{shown}" + notes_html(notes, self.unanswered)

    @property
    def _summary(self) -> str:
        judged = len(self.diagnosis.silent)
        found = f"{len(self)} findings" if self.findings else f"nothing found by {judged} rules"
        return found + (f"; {len(self.unjudged)} rules could not judge" if self.unjudged else "")


def _about(finding: Finding) -> str:
    parts = [finding.rule, finding.certainty.label]
    parts += [num_ranks(finding.ranks)] * bool(finding.ranks)
    parts += [f"{seconds(finding.cost_s)} a step"] if finding.cost_s is not None else []
    parts += [f"{percent(finding.share)} of the time"] if finding.share else []
    parts += [finding.where] * bool(finding.where)
    return ", ".join(parts)
