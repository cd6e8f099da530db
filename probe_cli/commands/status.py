"""`probe … status`: one screen about a job: its steps, its numbers, where its time goes, and the first finding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from probe_agent.wire import TargetInfo
from probe_cli.cluster.fanout import Answers
from probe_cli.diagnose import Diagnosis, Evidence, diagnose, question_of, rules
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import in_both_forms, show, show_envelope
from probe_cli.session import Session
from probe_cli.text import age, by_reason, mebibytes, num_ranks, percent, seconds

__all__ = ["command"]

PHASES = ("data_wait", "forward", "backward", "optimizer", "evaluation", "generation", "other")
RECENT = "(FROM python.steps ORDER BY step DESC LIMIT 200)"
#: Each put to every target by itself.
STATEMENTS = {
    "status.steps": f"""
SELECT count(*) AS steps, max(step) AS step, epoch(now()::TIMESTAMPTZ) - epoch(max(ts)) AS age,
    median(duration) AS usual, sum(duration) AS lasted, sum(batch_size) AS samples, bool_or(counted) AS counted,
    arg_max(evaluation, step) AS evaluating, arg_max(generation, step) AS generating, arg_max(lr, step) AS lr,
    arg_max(grad_norm, step) AS grad_norm, arg_max(rss, step) AS rss, arg_max(allocated, step) AS allocated,
    arg_max(reserved, step) AS reserved,
    {", ".join(f"sum(coalesce({name}, 0)) AS {name}" for name in PHASES)}
FROM {RECENT}""",
    "status.loss": """
SELECT median(loss) FILTER (back <= 20) AS now, median(loss) FILTER (back > 100 AND back <= 120) AS before,
    (SELECT min(step) FROM python.steps WHERE NOT isfinite(loss)) AS first_bad
FROM (SELECT loss, row_number() OVER (ORDER BY step DESC) AS back FROM python.steps WHERE isfinite(loss))""",
    "status.best": """
SELECT min(usual) AS usual, count(*) AS windows FROM (
    SELECT median(duration) AS usual FROM python.steps WHERE step > (SELECT min(step) + 10 FROM python.steps)
    GROUP BY step // 50 HAVING count(*) >= 40)""",
    "status.modules": """
WITH sampled AS (SELECT DISTINCT step FROM python.torch_trace ORDER BY step DESC LIMIT 10)
SELECT module, stage, sum(self_duration) AS own, sum(sum(self_duration)) OVER () AS together,
    (SELECT count(*) FROM sampled) AS steps
FROM python.torch_trace WHERE step IN (FROM sampled) GROUP BY ALL ORDER BY own DESC LIMIT 5""",
    "status.spans": f"""
SELECT name, sum(duration) AS lasted FROM python.spans
WHERE on_training_thread AND depth = 0 AND name IS NOT NULL
    AND step BETWEEN (SELECT min(step) FROM {RECENT}) AND (SELECT max(step) FROM {RECENT})
GROUP BY name ORDER BY lasted DESC LIMIT 5""",
    "status.calls": f"""
SELECT sum(wait) AS waited, count(*) AS calls, mode(op) AS op, sum(bytes) AS bytes
FROM python.collectives WHERE step IN (SELECT step FROM {RECENT})""",
}
NO_STEP = "no step yet"


@click.command("status")
@format_option()
@timeout_option(5.0, "How long a rank may take to answer.")
@click.pass_obj
def command(session: Session, format_: str, timeout_s: float) -> int:
    """Show how the job is doing on one screen.

    Step and rate, loss, where the step's time goes, collectives, memory, and the first finding of `diagnose`. Of
    several ranks the rank with the median step is shown, and a line for each.

    \b
    Exit codes:
      0  the target answered
      3  some ranks did not answer
      4  none did
    """
    ranks = session.list_ranks()
    every = rules().values()
    targets = {endpoint: one.info for endpoint, one in ranks.answered}
    question = question_of(every, timeout_s, STATEMENTS, targets)
    answers = session.ask_ranks(question, timeout_s=6 * timeout_s, ranks=ranks)
    told = [(targets[endpoint], evidence) for endpoint, evidence in answers.answered]
    if told:
        _show(told, answers, diagnose(every, told, {}), format_)
    return answers.exit_code


@in_both_forms
def _show(
    told: Sequence[tuple[TargetInfo, Evidence]], answers: Answers[Evidence], diagnosis: Diagnosis, format_: str
) -> None:
    columns = ("rank", "host", "pid", "step", "last_step", "step_time", "data_wait", "loss", "rss", "state")
    types = ("BIGINT", "VARCHAR", "BIGINT", "BIGINT", "DOUBLE", "DOUBLE", "DOUBLE", "DOUBLE", "DOUBLE", "VARCHAR")
    rows = []
    for target, evidence in told:
        steps, loss = _only(evidence, "status.steps"), _only(evidence, "status.loss")
        waits = steps["data_wait"] / steps["lasted"] if steps.get("lasted") else None
        rows.append(
            (target.rank, target.host, target.pid, steps.get("step"), steps.get("age"), steps.get("usual"), waits,
             loss.get("now"), steps.get("rss"), target.state)
        )  # fmt: skip
    sheet = Sheet(columns, types, rows)
    if format_ in ("json", "envelope"):
        findings = [{"rule": one.rule, "sentence": one.sentence, "ranks": one.ranks} for one in diagnosis.findings]
        show_envelope(sheet, answers, [], findings=findings)
    elif format_ != "table":
        show(sheet, format_)
    else:
        shown, evidence = _median(told)
        print("\n".join(_screen(shown, evidence, told, diagnosis)), flush=True)
        if told[1:]:
            print(flush=True)
            show(sheet, format_)
        for line in by_reason(evidence.failed, most=3):
            remark(f"not judged: {line}")


def _median(told: Sequence[tuple[TargetInfo, Evidence]]) -> tuple[TargetInfo, Evidence]:
    times = [(_only(evidence, "status.steps").get("usual") or 0.0, at) for at, (_, evidence) in enumerate(told)]
    return told[sorted(times)[len(times) // 2][1]]


def _only(evidence: Evidence, name: str) -> Mapping[str, Any]:
    rows = evidence.rows.get(name, ())
    return rows[0] if rows else {}


def _screen(
    target: TargetInfo, evidence: Evidence, told: Sequence[tuple[TargetInfo, Evidence]], diagnosis: Diagnosis
) -> list[str]:
    steps = _only(evidence, "status.steps")
    who = f"rank {target.rank} of {target.world_size}" if target.world_size > 1 else f"pid {target.pid}"
    job = f"job {target.job}, " if target.job else ""
    lines = [("job", f"{job}{who} on {target.host}, {target.state}: {' '.join(target.command)[:60]}")]
    if steps.get("steps"):
        lines += _of_steps(steps, _only(evidence, "status.best"))
        lines += _of_loss(steps, _only(evidence, "status.loss"))
        shares = [(name, steps[name] / steps["lasted"]) for name in PHASES if steps["lasted"]]
        told_shares = "  ".join(f"{name} {percent(share)}" for name, share in shares if share >= 0.005)
        lines.append(("time", f"{told_shares}  (of {steps['steps']} steps)"))
        lines += _of_spans(steps, evidence.rows.get("status.spans", ()))
        lines += _of_modules(evidence.rows.get("status.modules", ()))
        lines += _of_calls(steps, _only(evidence, "status.calls"), target)
        lines.append(("memory", _memory(steps)))
    else:
        lines.append(("step", NO_STEP + "".join(f"; {note}" for note in evidence.notes[:1])))
    lines += _of_findings(diagnosis, len(told))
    return [f"{label:<12}{text}" for label, text in lines]


def _of_steps(steps: Mapping[str, Any], best: Mapping[str, Any]) -> list[tuple[str, str]]:
    doing = "evaluating" if steps["evaluating"] else "generating" if steps["generating"] else "training"
    usual = steps["usual"]
    rate = f"{1 / usual:.3g} steps/s ({seconds(usual)} each)" if usual else "no rate"
    samples = f", {steps['samples'] / steps['lasted']:.0f} samples/s" if steps["samples"] and steps["lasted"] else ""
    counted = "" if steps["counted"] else ", counted from the attach"
    lines = [("step", f"{steps['step']}{counted}, {age(steps['age'])} ago, {doing}, {rate}{samples}")]
    if best.get("windows", 0) > 1:
        slower = usual / best["usual"] - 1
        lines.append(("best", f"{seconds(best['usual'])} in the best 50 steps; now {slower:+.0%}"))
    return lines


def _of_loss(steps: Mapping[str, Any], loss: Mapping[str, Any]) -> list[tuple[str, str]]:
    parts = []
    if loss.get("now") is not None:
        before = "" if loss["before"] is None else f" ({loss['before']:.4g} 100 steps ago)"
        parts.append(f"{loss['now']:.4g}{before}")
    if loss.get("first_bad") is not None:
        parts.append(f"NaN or infinite since step {loss['first_bad']}")
    parts += [f"{name} {steps[key]:.3g}" for name, key in (("lr", "lr"), ("gradient norm", "grad_norm")) if steps[key]]
    return [("loss", ", ".join(parts) or "none recorded")]


def _of_modules(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if not rows:
        return []
    top = ", ".join(f"{row['module']} {row['stage']} {percent(row['own'] / row['together'])}" for row in rows[:3])
    return [("modules", f"{top}  (own time, {rows[0]['steps']} sampled steps)")]


def _of_spans(steps: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if not rows:
        return []
    told = "  ".join(f"{row['name']} {percent(row['lasted'] / steps['lasted'])}" for row in rows)
    return [("spans", f"{told}  (parts that the job names, within the time above)")]


def _of_calls(steps: Mapping[str, Any], calls: Mapping[str, Any], target: TargetInfo) -> list[tuple[str, str]]:
    if target.world_size < 2 or not calls.get("calls"):
        return []
    share = (calls["waited"] or 0.0) / steps["lasted"]
    volume = (calls["bytes"] or 0) / 2**20 / steps["steps"]
    each = calls["calls"] / steps["steps"]
    return [
        ("collectives", f"{percent(share)} of the time, {each:.3g} a step ({calls['op']}), {mebibytes(volume)} a step")
    ]


def _memory(steps: Mapping[str, Any]) -> str:
    parts = [] if steps["rss"] is None else [f"resident {mebibytes(steps['rss'])}"]
    if steps["reserved"] is not None:
        parts.append(f"device {mebibytes(steps['allocated'])} allocated, {mebibytes(steps['reserved'])} reserved")
    return ", ".join(parts) or "none recorded"


def _of_findings(diagnosis: Diagnosis, num_targets: int) -> list[tuple[str, str]]:
    if not diagnosis.findings:
        unjudged = f"; {len(diagnosis.unjudged)} rules could not judge" if diagnosis.unjudged else ""
        return [("findings", f"none by {len(diagnosis.silent)} rules{unjudged}")]
    first = diagnosis.findings[0]
    more = f" (and {len(diagnosis.findings) - 1} more: probe … diagnose)" if diagnosis.findings[1:] else ""
    of = f" on {num_ranks(first.ranks)}" if num_targets > 1 and len(first.ranks) < num_targets else ""
    return [("finding", f"{first.sentence}{of}{more}"), ("try first", first.try_first)]
