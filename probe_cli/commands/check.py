"""`probe … check`: the list to go through before a long run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import TargetInfo, suggest
from probe_cli.cluster.fanout import Answers
from probe_cli.diagnose import Evidence, Job, diagnose, question_of, rules
from probe_cli.diagnose.check import Check, Level, Line, checked
from probe_cli.diagnose.checks import checks
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show, show_envelope
from probe_cli.session import Session
from probe_cli.text import num_ranks

__all__ = ["command"]

WIDTH = 110
#: Columns of a line: the level, the name of the check.
MARGIN = 9 + 16


@click.command("check")
@click.option("--check", "chosen", multiple=True, metavar="NAME", help="Only this check; may be repeated.")
@click.option("--list", "list_", is_flag=True, help="List the checks and what each asks.")
@format_option()
@timeout_option(5.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, chosen: Sequence[str], list_: bool, format_: str, timeout_s: float) -> int:
    """Go through the list before a long run.

    Versions, ranks, seeds, debug settings, precision, compilation, data loader, threads, limits, disk and quota,
    shared memory, collectives, the kernel's log: each line is ok, warn or bad, with what was seen and what to do, or
    unknown where nobody can tell. Rules of `diagnose` answer where the question is the same.

    \b
    Exit codes:
      0  every line is ok
      1  some line is warn or bad
      3  none is, and a part is unknown, or a rank did not answer
      4  no rank could be reached
    """
    every = checks()
    if list_:
        rows = [(check.name, check.question, ", ".join(check.rules)) for check in every.values()]
        show(Sheet(("check", "question", "rules"), ("VARCHAR",) * 3, rows), format_)
        return 0
    wanted = [_named(every, name) for name in chosen] or list(every.values())
    ranks = session.list_ranks()
    targets = {endpoint: one.info for endpoint, one in ranks.answered}
    asked_rules = [rules()[name] for name in sorted({name for check in wanted for name in check.rules})]
    readings = [check.question_asked for check in wanted if check.read is not None]
    question = question_of([*asked_rules, *readings], timeout_s, targets=targets)
    answers = session.ask_ranks(question, timeout_s=3 * timeout_s, ranks=ranks)
    told = [(targets[endpoint], evidence) for endpoint, evidence in answers.answered]
    if not told:
        return answers.exit_code
    lines = checked(wanted, told, diagnose(asked_rules, told, {}, Job(targets, timeout_s)))
    _show(lines, [target for target, _ in told], answers, format_)
    if any(line.level in (Level.BAD, Level.WARN) for line in lines):
        return 1
    return answers.exit_code or (3 if any(line.level is Level.UNKNOWN for line in lines) else 0)


def _named(every: Mapping[str, Check], name: str) -> Check:
    if name not in every:
        near = suggest(name, every, {})
        hint = f"did you mean {' or '.join(near)}" if near else "list them with: probe check --list"
        raise BadRequest(f"no check is called {name}", hint)
    return every[name]


def _show(lines: Sequence[Line], targets: Sequence[TargetInfo], answers: Answers[Evidence], format_: str) -> None:
    columns = ("check", "level", "sentence", "remedy", "ranks")
    types = ("VARCHAR", "VARCHAR", "VARCHAR", "VARCHAR", "BIGINT[]")
    rows = [(one.check, one.level.value, one.sentence, one.remedy, list(one.ranks)) for one in lines]
    sheet = Sheet(columns, types, rows)
    if format_ in ("json", "envelope"):
        show_envelope(sheet, answers, [])
    elif format_ != "table":
        show(sheet, format_)
    else:
        print("\n".join(_text(lines, targets)), flush=True)


def _text(lines: Sequence[Line], targets: Sequence[TargetInfo]) -> list[str]:
    who = num_ranks(max(0, target.rank or 0) for target in targets)
    counts = [(level, sum(line.level is level for line in lines)) for level in Level if level is not Level.NONE]
    told = [f"{who}: {', '.join(f'{number} {level.value}' for level, number in counts if number)}", ""]
    for line in lines:
        some = f" ({num_ranks(line.ranks)})" if line.ranks and len(line.ranks) < len(targets) else ""
        told += _folded(f"{line.level.value:9}{line.check:16}", line.sentence + some)
        if line.remedy:
            told += _folded(" " * MARGIN, f"→ {line.remedy}")
    return told


def _folded(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * MARGIN,
        break_long_words=False,
        break_on_hyphens=False,
    )
