"""`probe … memory`: what takes the memory, whether it grows, and when it is full."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Sequence
from dataclasses import asdict

import click

from probe_agent.errors import BadRequest, NoAnswer
from probe_agent.units import mib
from probe_agent.wire import LeaksRequest, SnapshotLine, SnapshotRequest
from probe_cli.client import Client
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.memory.leaks import Leaks, ask_leaks
from probe_cli.cluster.memory.leaks import sentence as leaks_sentence
from probe_cli.cluster.memory.look import OWN, Look, look
from probe_cli.cluster.memory.report import Report, full_at, notes_on, sentence
from probe_cli.cluster.memory.trend import State
from probe_cli.messages import remark
from probe_cli.options import format_option, seconds, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.output import written_file
from probe_cli.render.show import in_both_forms, show, show_answers, show_envelope
from probe_cli.session import Session
from probe_cli.text import mebibytes

__all__ = ["command"]

#: Beyond its own time-out, a look is several questions one after the other.
GRACE_S = 10.0
GROWS, UNKNOWN = 1, 3
#: Length of a window, and how long one of so many steps may take.
WINDOW_S, STEPS_S = 10.0, 120.0
#: Beyond the window, five looks at a large process take time.
LOOKS_S = 60.0
MAX_LINES = 20
_KINDS = ("parameters", "gradients", "optimizer state", "buffers")


@click.command("memory")
@click.option(
    "--top", type=click.IntRange(0, 1000), default=8, show_default=True, metavar="N", help="Show the N largest modules."
)
@click.option("--last", "last_s", callback=seconds, metavar="TIME", help="Judge the growth over TIME: 90, 15m, 2h.")
@click.option(
    "--snapshot",
    "path",
    metavar="FILE",
    help="Write the state of torch's CUDA allocator to FILE, a pickle for torch's memory viewer.",
)
@click.option("--leaks", is_flag=True, help="Trace allocations for a while, and name the lines that keep them.")
@click.option(
    "--seconds", "window_s", callback=seconds, metavar="TIME", help="With --leaks: trace for TIME.  [default: 10s]"
)
@click.option("--steps", type=click.IntRange(3, 10_000), metavar="N", help="With --leaks: trace for N steps.")
@format_option()
@timeout_option(10.0, "How long a target may take to answer.")
@click.pass_obj
def command(
    session: Session,
    top: int,
    last_s: float | None,
    path: str | None,
    leaks: bool,
    window_s: float | None,
    steps: int | None,
    format_: str,
    timeout_s: float,
) -> int:
    """Say what takes the memory of the target, whether it grows, and at which step it is full.

    Parameters, gradients, optimizer state and buffers are counted by device; what is left of the memory in use is
    activations, data and Python. Below come the largest modules, the host's limits, and who else uses the device. With
    several ranks there is a row for each.

    Growth is judged over the rows of the rings, two hours at most. It is claimed only if it is significant: the memory
    must keep growing, after the first fifth of the time, in a way that jumps, saws and random walks do not explain
    (p ≤ 0.001), and be seen for a fiftieth of the time in which it reaches a limit, from 15 s to ten minutes. The limit
    is the one that is reached first: the device, the control group, ulimit -v, the host.

    With --leaks, Python's tracemalloc is on in the target for the window, and on a GPU the history of torch's
    allocator: the job is slower meanwhile, and stands still for five looks, which a remark counts. The lines come
    with what they keep, tensors with the container that holds them. Tracing ends with the command, however that ends.

    \b
    Exit codes:
      0  no significant growth; with --leaks, no line that grows
      1  memory grows; with --leaks, lines that grow
      3  too early to tell, or part of the targets did not answer
      4  no target could be reached
    """
    if path is not None:
        return _snapshot(session, path, timeout_s)
    if leaks:
        return _leaks(session, LeaksRequest(window_s or (STEPS_S if steps else WINDOW_S), steps), format_)
    if window_s is not None or steps is not None:
        raise BadRequest("--seconds and --steps are the length of the window of --leaks", "add --leaks")
    ranks = session.list_ranks()
    infos = {endpoint: one.info for endpoint, one in ranks.answered}
    answers = session.ask_ranks(look(timeout_s, top, last_s), timeout_s=timeout_s + GRACE_S, ranks=ranks)
    reports = [Report(infos[endpoint], seen) for endpoint, seen in answers.answered]
    _show(reports, answers, format_)
    states = {report.state for report in reports}
    if State.GROWS in states:
        return GROWS
    return answers.exit_code or (UNKNOWN if State.UNKNOWN in states or not reports else 0)


def _snapshot(session: Session, path: str, timeout_s: float) -> int:
    """Write torch's snapshot of its allocator to a file; one that is not whole is not left behind."""
    if session.num_endpoints > 1:
        raise BadRequest("one file cannot hold several snapshots", "take them one by one")

    async def question(client: Client) -> int:
        size, end, said = 0, None, "it broke off"
        answer = client.lines(SnapshotLine, "/v1/memory/snapshot", SnapshotRequest())
        with written_file(path) as file:
            async with contextlib.aclosing(answer) as lines:  # type: ignore[type-var]  # as its type does not say
                async for line in lines:
                    said = line.note or said
                    if line.data is not None:
                        size += file.write(base64.b64decode(line.data))
                    end = line if line.done else end
            if end is None:
                raise NoAnswer(f"{client.endpoint} did not finish the snapshot: {said}", "see: probe list --dead")
        return size

    answers = session.ask(question, timeout_s=timeout_s + LOOKS_S)
    for _, size in answers.answered:
        remark(f"wrote {path} ({mebibytes(mib(size))}): open it with torch's memory viewer (_memory_viz.py)")
    return answers.exit_code


def _leaks(session: Session, wanted: LeaksRequest, format_: str) -> int:
    """Trace a window in each target; show the lines."""
    answers = session.ask(ask_leaks(wanted, remark), timeout_s=wanted.seconds + LOOKS_S)
    notes = [(endpoint, note) for endpoint, found in answers.answered for note in found.notes]
    if format_ in ("json", "envelope"):
        told = [
            {"endpoint": str(endpoint), "sentence": leaks_sentence(found), **asdict(found)}
            for endpoint, found in answers.answered
        ]
        rows = Sheet((), (), ())
        show_envelope(rows, answers, [note for _, note in notes], leaks=told)
    else:
        for endpoint, found in answers.answered:
            text = leaks_sentence(found)
            text = text if answers.num_asked == 1 else f"{endpoint}: {text}"
            if format_ == "table":
                print(text + "\n", flush=True)
            else:
                remark(text)
        show_answers(answers, [(endpoint, _lines(found)) for endpoint, found in answers.answered], format_, notes)
    if any(found.growing for _, found in answers.answered):
        return GROWS
    return answers.exit_code


def _lines(leaks: Leaks) -> Sheet:
    types = {
        "line": "VARCHAR",
        "kind": "VARCHAR",
        "num": "BIGINT",
        "mib": "DOUBLE",
        "more": "BIGINT",
        "growth": "DOUBLE",
        "grows": "BOOLEAN",
        "graphs": "BIGINT",
        "held_in": "VARCHAR",
        "source": "VARCHAR",
    }
    rows = [
        (
            f"{one.file}:{one.lineno}",
            one.kind,
            one.num,
            one.mib,
            one.more,
            one.growth,
            one.grows,
            one.graphs,
            one.holder,
            one.source,
        )
        for one in leaks.lines[:MAX_LINES]
    ]
    return Sheet(tuple(types), tuple(types.values()), rows)


def _neighbours(report: Report, reports: Sequence[Report]) -> list[Report]:
    """The targets that share its host and its control group."""

    def group(one: Report) -> object:
        return one.info.host, (one.look.now or {}).get("cgroup")

    return [one for one in reports if group(one) == group(report)]


@in_both_forms
def _show(reports: Sequence[Report], answers: Answers[Look], format_: str) -> None:
    sentences = [sentence(report, _neighbours(report, reports)) for report in reports]
    gaps = [(report, gap) for report in reports for gap in report.look.gaps]
    several = len(reports) > 1
    notes = [note for report in reports for note in notes_on(report)]
    notes += [f"{'' if not several else f'pid {report.info.pid}: '}{gap}" for report, gap in gaps]
    sheet = _by_rank(reports) if several else _parts(reports)
    if format_ in ("json", "envelope"):
        show_envelope(
            sheet,
            answers,
            notes,
            sentences=sentences,
            targets=[_record(report, _neighbours(report, reports)) for report in reports],
        )
        return
    for text in sentences if not several else [_summary(reports, sentences)]:
        if format_ == "table":
            print(text + "\n", flush=True)
        else:
            remark(text)
    show(sheet, format_)
    if format_ == "table" and not several:
        for report in reports:
            _show_more(report)
    for note in notes:
        remark(note)


def _summary(reports: Sequence[Report], sentences: Sequence[str]) -> str:
    """One sentence about several ranks: that of the rank that is full first, or of the largest."""
    worst = {State.GROWS: 0, State.UNKNOWN: 1, State.LEVELLING: 2, State.FLAT: 3}

    def order(at: int) -> tuple[int, float, float]:
        report = reports[at]
        ends = [full_at(report, name, _neighbours(report, reports)) for name in report.growing]
        first = min((end.in_s for end in ends if end is not None), default=float("inf"))
        return worst[report.state], first, -sum(part.mib for part in report.parts)

    at = min(range(len(reports)), key=order)
    num = sum(report.state is State.GROWS for report in reports)
    return sentences[at] + (f"; memory grows on {num} of {len(reports)} ranks" if num else "")


def _parts(reports: Sequence[Report]) -> Sheet:
    rows = [(part.place, part.name, part.mib, part.share) for report in reports for part in report.parts]
    return Sheet(("place", "part", "mib", "share"), ("VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE"), rows)


def _by_rank(reports: Sequence[Report]) -> Sheet:
    rows = []
    for report in reports:
        of_kind = [sum(one.mib for one in report.look.tensors if one.kind == kind) for kind in _KINDS]
        host, devices = report.trends.get(OWN), report.look.devices
        ends = [full_at(report, name, _neighbours(report, reports)) for name in report.growing]
        steps = [end.step for end in ends if end is not None and end.step is not None]
        growth = next(iter(report.growing.values()), host)
        rows.append(
            (
                report.info.rank,
                report.info.host,
                report.info.pid,
                report.info.step,
                report.now("rss") if host is None or report.now("rss") is not None else host.last,
                *(of_kind if report.look.tensors else [None] * len(_KINDS)),
                report.now("workers_private"),
                sum(device.allocated for device in devices) if devices else None,
                sum(device.reserved for device in devices) if devices else None,
                None if growth is None else growth.per_step,
                report.state.value,
                min(steps, default=None),
            )
        )
    columns = {
        "rank": "BIGINT",
        "host": "VARCHAR",
        "pid": "BIGINT",
        "step": "BIGINT",
        "rss": "DOUBLE",
        "parameters": "DOUBLE",
        "gradients": "DOUBLE",
        "optimizer": "DOUBLE",
        "buffers": "DOUBLE",
        "workers": "DOUBLE",
        "allocated": "DOUBLE",
        "reserved": "DOUBLE",
        "a_step": "DOUBLE",
        "growth": "VARCHAR",
        "full_at": "BIGINT",
    }
    return Sheet(tuple(columns), tuple(columns.values()), rows)


def _show_more(report: Report) -> None:
    """The largest modules, the growth of each series, and the limits of the host."""
    modules = [(one.module, one.class_, one.device, one.mib, one.gradients) for one in report.look.modules]
    if modules:
        print()
        names = ("module", "class", "device", "mib", "gradients")
        show(Sheet(names, ("VARCHAR", "VARCHAR", "VARCHAR", "DOUBLE", "DOUBLE"), modules), "table")
    series = [
        (name, found.last, found.per_step, found.per_second, found.p, found.num_steps, found.state.value)
        for name, found in report.trends.items()
    ]
    if series:
        print()
        of_series = ("series", "mib", "a_step", "a_second", "p", "steps", "growth")
        show(Sheet(of_series, ("VARCHAR", *["DOUBLE"] * 4, "BIGINT", "VARCHAR"), series), "table")
    limits = [
        (name, report.now(used), report.now(limit))
        for name, used, limit in (
            ("address space (ulimit -v)", "address_space", "address_limit"),
            ("control group", "cgroup_used", "cgroup_limit"),
            ("its page cache", "cgroup_page_cache", None),
            ("/dev/shm", "shm_used", "shm_size"),
            ("host: available", "host_available", "host_total"),
        )
        if limit is None or report.now(used) is not None
        for limit in (limit or "",)
    ]
    if report.look.now is not None:
        print()
        show(Sheet(("limit", "mib", "of"), ("VARCHAR", "DOUBLE", "DOUBLE"), limits), "table")


def _record(report: Report, neighbours: Sequence[Report]) -> dict[str, object]:
    """What programs read about one target."""
    return {
        "rank": report.info.rank,
        "host": report.info.host,
        "pid": report.info.pid,
        "step": report.info.step,
        "state": report.state.value,
        "sentence": sentence(report, neighbours),
        "parts": [asdict(part) for part in report.parts],
        "tensors": [asdict(one) for one in report.look.tensors],
        "modules": [asdict(one) for one in report.look.modules],
        "trends": {
            name: {
                **{key: value for key, value in asdict(found).items() if key != "state"},
                "state": found.state.value,
                "full": None if name not in report.growing else _full(report, name, neighbours),
            }
            for name, found in report.trends.items()
        },
        "host_memory": report.look.now,
        "devices": [asdict(device) for device in report.look.devices],
        "users": [asdict(user) for user in report.look.users],
        "gaps": list(report.look.gaps),
    }


def _full(report: Report, name: str, neighbours: Sequence[Report]) -> dict[str, object] | None:
    end = full_at(report, name, neighbours)
    return None if end is None else asdict(end)
