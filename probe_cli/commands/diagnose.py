"""`probe … diagnose`: what is wrong with the job, what it costs, and what to try first."""

from __future__ import annotations

import asyncio
import json
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.request import Request, urlopen

import click

from probe_agent.errors import BadRequest
from probe_agent.wire import TargetInfo, suggest
from probe_cli.client import Client
from probe_cli.cluster.fanout import Answers
from probe_cli.diagnose import Diagnosis, Evidence, Finding, Job, Rule, diagnose, page, question_of, rules
from probe_cli.diagnose.job import rank_of
from probe_cli.diagnose.sampling import Stack, first_of, first_stacks
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import in_both_forms, show, show_envelope
from probe_cli.session import Session
from probe_cli.text import by_reason, num_ranks, percent, seconds

__all__ = ["command"]

WIDTH = 100
#: Processes without a rank that a line names.
MAX_PIDS = 8
#: How long an address may take for a finding.
WEBHOOK_S = 10.0


@click.command("diagnose")
@click.option("--rule", "chosen", multiple=True, metavar="NAME", help="Only this rule; may be repeated.")
@click.option("--list", "list_", is_flag=True, help="List the rules and what each asks.")
@click.option("--explain", metavar="NAME", help="Print the page of a rule: what it means, its SQL, its thresholds.")
@click.option("--set", "set_", multiple=True, metavar="RULE.NAME=NUMBER", help="Another threshold for a rule.")
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Judge again every so often, and print each finding when it is new.",
)
@click.option(
    "--on-finding",
    "shell_command",
    metavar="COMMAND",
    help="With --watch: run this for each new finding, with the finding as JSON on stdin.",
)
@click.option("--webhook", metavar="URL", help="With --watch: POST each new finding as JSON to this address.")
@format_option()
@timeout_option(5.0, "How long a rank may take to answer.")
@click.pass_obj
def command(
    session: Session,
    chosen: Sequence[str],
    list_: bool,
    explain: str | None,
    set_: Sequence[str],
    watch_s: float | None,
    shell_command: str | None,
    webhook: str | None,
    format_: str,
    timeout_s: float,
) -> int:
    """Say what is wrong with the job, what it costs, and what to do.

    Every target is asked for what it has recorded, and rules judge it. Findings come with those first that are most
    certain and cost most; what another finding explains is shown below that one. A rule whose evidence is missing says
    so, and is not counted as fine.

    \b
    Exit codes:
      0  nothing found
      1  findings
      3  nothing found, and a part could not be judged
      4  no rank could be reached
    """
    if (shell_command or webhook) and watch_s is None:
        option = "--on-finding COMMAND" if shell_command else "--webhook URL"
        raise BadRequest(f"{option.split()[0]} needs --watch", f"probe … diagnose --watch 30 {option}")
    if webhook and not webhook.startswith(("http://", "https://")):
        raise BadRequest(f"invalid address '{webhook}' for --webhook", "use http://HOST/PATH or https://HOST/PATH")
    every = rules()
    if list_:
        rows = [(rule.family, rule.name, rule.question) for rule in every.values()]
        show(Sheet(("family", "rule", "question"), ("VARCHAR",) * 3, rows), format_)
        return 0
    if explain is not None:
        print(_page(_named(every, explain)))
        return 0
    wanted = [_named(every, name) for name in chosen] or list(every.values())
    overrides = dict(_override(every, text) for text in set_)
    ranks = session.list_ranks()
    targets = {endpoint: one.info for endpoint, one in ranks.answered}
    looks = [rank_of(one) for one in targets.values() if any(rule.look for rule in wanted)]
    known: dict[str, list[Stack]] = {}

    def judged() -> tuple[Answers[Evidence], list[tuple[TargetInfo, Evidence]], Diagnosis]:
        began = time.monotonic()
        evidence_of = question_of(wanted, timeout_s, targets=targets)

        async def asked(client: Client) -> Evidence:
            """Of a single target, take the stacks of the first look meanwhile: it would wait for them later."""
            if len(looks) != 1:
                return await evidence_of(client)
            told, stacks = await asyncio.gather(evidence_of(client), first_stacks(client))
            known.update({first_of(looks[0]): stacks} if stacks else {})
            return told

        answers = session.ask_ranks(asked, timeout_s=6 * timeout_s, ranks=ranks)
        told = [(targets[endpoint], evidence) for endpoint, evidence in answers.answered]
        return answers, told, diagnose(wanted, told, overrides, Job(targets, timeout_s, known, began))

    if watch_s is not None:
        return _watch(lambda: judged()[2], watch_s, shell_command, webhook)
    answers, told, diagnosis = judged()
    _show(diagnosis, told, answers, format_)
    asked_of = {one.pid for one in targets.values()}
    for started in session.beside:
        if not asked_of.issuperset(started.pids):
            remark(str(started))
    if diagnosis.findings:
        return 1
    return answers.exit_code or (3 if diagnosis.unjudged else 0)


def _watch(judge: Callable[[], Diagnosis], every_s: float, shell_command: str | None, webhook: str | None) -> int:
    """Print each finding when it is first seen, until Ctrl-C; 1 where there was one."""
    seen: set[tuple[str, str]] = set()
    try:
        while True:
            began = time.monotonic()
            for finding in judge().findings:
                if (finding.rule, finding.where) not in seen:
                    seen.add((finding.rule, finding.where))
                    print(time.strftime("%H:%M:%S"), *_finding(finding, "", 2), sep="\n", flush=True)
                    _tell(json.dumps(_as_json(finding)), shell_command, webhook)
            time.sleep(max(0.0, began + every_s - time.monotonic()))
    except KeyboardInterrupt:
        return 1 if seen else 0


def _tell(finding: str, shell_command: str | None, webhook: str | None) -> None:
    """Hand a finding on. What fails is said, and the watch goes on."""
    if shell_command is not None:
        code = subprocess.run(shell_command, shell=True, input=finding, text=True).returncode
        if code:
            remark(f"--on-finding: the command ended with exit code {code}")
    if webhook is not None:
        request = Request(webhook, finding.encode(), {"Content-Type": "application/json"}, method="POST")
        try:
            urlopen(request, timeout=WEBHOOK_S).close()
        except (OSError, ValueError) as error:
            remark(f"--webhook: {webhook} did not take the finding: {error}")


def _named(every: Mapping[str, Rule], name: str) -> Rule:
    if name not in every:
        near = suggest(name, every, {})
        hint = f"did you mean {' or '.join(near)}" if near else "list them with: probe diagnose --list"
        raise BadRequest(f"no rule is called {name}", hint)
    return every[name]


def _override(every: Mapping[str, Rule], text: str) -> tuple[str, float]:
    path, _, number = text.partition("=")
    rule_name, _, name = path.partition(".")
    rule = _named(every, rule_name)
    names = [one.name for one in rule.thresholds]
    if name not in names:
        has = f"it has {', '.join(names)}" if names else "it has none"
        raise BadRequest(f"{rule_name} has no threshold {name or '(none was named)'}", f"{has}; --set RULE.NAME=NUMBER")
    try:
        return path, float(number)
    except ValueError:
        raise BadRequest(f"{path}={number} is not a number", f"--set {path}=0.2") from None


def _page(rule: Rule) -> str:
    lines = [f"{rule.name} ({rule.family}): {rule.question}", "", page(rule.name), ""]
    if rule.thresholds:
        lines += ["Thresholds:"]
        lines += [f"  {one.name} = {one.default:g}: {one.meaning}" for one in rule.thresholds]
        lines += [f"  change one: --set {rule.name}.{rule.thresholds[0].name}=NUMBER", ""]
    if rule.explains:
        lines += [f"Explains: {', '.join(rule.explains)}", ""]
    return "\n".join([*lines, "SQL, put to each target:", rule.sql.strip()])


@in_both_forms
def _show(
    diagnosis: Diagnosis, told: Sequence[tuple[TargetInfo, Evidence]], answers: Answers[Evidence], format_: str
) -> None:
    columns = ("rule", "certainty", "ranks", "cost", "share", "since_step", "where", "sentence", "try_first")
    types = ("VARCHAR", "VARCHAR", "BIGINT[]", "DOUBLE", "DOUBLE", "BIGINT", "VARCHAR", "VARCHAR", "VARCHAR")
    rows = [
        (
            one.rule,
            one.certainty.label,
            [rank for rank in one.ranks if rank >= 0],
            one.cost_s,
            one.share,
            one.since_step,
            one.where,
            one.sentence,
            one.try_first,
        )
        for one in diagnosis.findings
    ]
    if format_ in ("json", "envelope"):
        show_envelope(
            Sheet(columns, types, rows),
            answers,
            [],
            findings=[_as_json(one) for one in diagnosis.findings],
            unjudged=dict(diagnosis.unjudged),
            inapplicable=dict(diagnosis.inapplicable),
            silent=list(diagnosis.silent),
        )
        return
    if format_ != "table":
        show(Sheet(columns, types, rows), format_)
    else:
        num_all = (
            len(diagnosis.silent) + len(diagnosis.unjudged) + len({one.rule for one in _every(diagnosis.findings)})
        )
        print("\n".join(_lines(diagnosis, told, num_all)), flush=True)
    for line in by_reason(diagnosis.unjudged):
        remark(f"not judged: {line}")


def _every(findings: Sequence[Finding]) -> list[Finding]:
    return [each for one in findings for each in (one, *_every(one.explains))]


def _as_json(finding: Finding) -> dict[str, Any]:
    return {
        **{name: value for name, value in asdict(finding).items() if name not in ("certainty", "explains")},
        "ranks": [rank for rank in finding.ranks if rank >= 0],
        "certainty": finding.certainty.label,
        "explains": [_as_json(one) for one in finding.explains],
    }


def _lines(diagnosis: Diagnosis, told: Sequence[tuple[TargetInfo, Evidence]], num_rules: int) -> list[str]:
    # A target without a rank is alone in most cases, and called rank 0.
    numbers = [rank_of(target) if told[1:] else target.rank or 0 for target, _ in told]
    who = _named_ranks(numbers) if told else "no rank"
    if not diagnosis.findings:
        judged = num_rules - len(diagnosis.unjudged)
        return [f"nothing found: {judged} rules judged what {who} recorded, {len(diagnosis.unjudged)} could not"]
    several = "s" if diagnosis.findings[1:] else ""
    lines = [f"{len(diagnosis.findings)} finding{several} in {who}, by {num_rules} rules"]
    for at, finding in enumerate(diagnosis.findings, 1):
        lines += ["", *_finding(finding, f"{at}. ", len(told))]
    return lines


def _finding(finding: Finding, number: str, num_targets: int) -> list[str]:
    margin = " " * len(number)
    about = [finding.certainty.label]
    if finding.ranks and num_targets > 1:
        about.append("all ranks" if len(finding.ranks) == num_targets else _named_ranks(finding.ranks))
    if finding.cost_s is not None:
        about.append(f"{seconds(finding.cost_s)} a step")
    if finding.share and finding.cost_s is not None:  # without a cost in time it is a weight
        about.append(f"{percent(finding.share)} of the time")
    if finding.since_step is not None:
        about.append(f"since step {finding.since_step}")
    if finding.where:
        about.append(finding.where)
    lines = [number + finding.sentence, f"{margin}{finding.rule}: {', '.join(about)}"]
    lines += [f"{margin}  seen: {text}" for text in finding.evidence]
    lines += [f"{margin}  do {at}: {text}" for at, text in enumerate(finding.advice, 1)]
    if finding.try_first:
        lines.append(f"{margin}  try first: {finding.try_first}")
    for below in finding.explains:
        lines.append(f"{margin}  explains: {below.sentence} ({below.rule})")
    return [part for line in lines for part in _folded(line)]


def _named_ranks(ranks: Iterable[int]) -> str:
    """Ranks, and PIDs of those that have none."""
    known = [rank for rank in ranks if rank >= 0]
    pids = [-rank for rank in ranks if rank < 0]
    listed = f"pid {', '.join(map(str, pids[:MAX_PIDS]))}{', …' if pids[MAX_PIDS:] else ''}"
    return " and ".join([*([num_ranks(known)] if known else []), *([listed] if pids else [])])


def _folded(line: str) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [""]
