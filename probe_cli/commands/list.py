"""`probe list`: the targets of a host, and the processes that could become targets."""

from __future__ import annotations

import time

import click

from probe_agent.wire import Candidate, TargetInfo, TargetList
from probe_cli.client import Client, open_host
from probe_cli.client.host_server import running_server
from probe_cli.client.loop import run
from probe_cli.cluster.fanout import Answers
from probe_cli.cluster.ranks.ended import told_first
from probe_cli.cluster.ranks.jobs import in_job
from probe_cli.endpoint import LocalProcess, TcpServer, ThisHost, UnixServer
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show_answers
from probe_cli.session import Session
from probe_cli.text import age

__all__ = ["command"]


@click.command("list")
@click.option("--dead", is_flag=True, help="Also targets that have ended, when and how; what they left can be queried.")
@format_option()
@timeout_option(10.0, "How long to wait for the answer.")
@click.pass_obj
def command(session: Session, dead: bool, format_: str, timeout_s: float) -> int:
    """List the targets of this host (or of the named host servers) and how long ago their last step was, then Python
    processes without a recorder.

    Those that look like a training process come first. Targets that have ended are shown with --dead, and if no living
    one is left.
    """

    async def of_this_host() -> TargetList:
        async with open_host() as client:
            return await _question(client)

    # A PID, perhaps from $PROBE_ENDPOINT, is on this host; a host server may be anywhere.
    session.named = tuple(endpoint for endpoint in session.named if not isinstance(endpoint, LocalProcess))
    if session.named:
        answers = session.ask(_question, timeout_s=timeout_s, of_many=True)
    else:
        answers = Answers(((ThisHost(), run(of_this_host())),), ())
    sheets = [(endpoint, _sheet(listed, dead, format_)) for endpoint, listed in answers.answered]
    notes = [(endpoint, note) for endpoint, listed in answers.answered for note in _notes(listed, dead)]
    if not session.named:
        notes.append((ThisHost(), running_server()))
    show_answers(answers, sheets, format_, notes)
    return answers.exit_code


async def _question(client: Client) -> TargetList:
    listed = await client.get(TargetList, "/v1/targets", candidates="true")
    at = client.endpoint
    if isinstance(at, TcpServer | UnixServer) and at.job is not None:
        return TargetList(in_job(listed.targets, at.job, at))
    return listed


def _shown(listed: TargetList, dead: bool) -> list[TargetInfo]:
    """The living, and those that have ended where they are asked for or no other is left; by job."""
    targets = sorted(listed.targets, key=lambda target: target.job)
    living = [target for target in targets if target.alive]
    ended = [target for target in targets if not target.alive]
    return living + (ended if dead or not living else [])


def _notes(listed: TargetList, dead: bool) -> list[str]:
    left_out = len(listed.targets) - len(_shown(listed, dead))
    notes = []
    if left_out:
        notes.append(f"{left_out} more {'has' if left_out == 1 else 'have'} ended; list them with: probe list --dead")
    notes += [
        f"pid {target.pid}: {target.server_problem}"
        for target in listed.targets
        if target.alive and target.server_problem
    ]
    uncounted = [str(target.pid) for target in listed.targets if target.uncounted]
    if uncounted:
        notes.append(
            f"step of pid {', '.join(uncounted)} is counted from the attach: the job's own count is not known; try:"
            " probe PID config step.from=VARIABLE, where the job has it, such as trainer.global_step"
        )
    notes += [f"pid {target.pid}: {target.stall}" for target in _shown(listed, dead) if target.stall]
    return notes + told_first(listed.targets, of_living_jobs=left_out > 0)


def _sheet(listed: TargetList, dead: bool, format_: str) -> Sheet:
    def shown(age_s: float | None) -> object:
        return age(age_s) if format_ == "table" else age_s

    def last_step(target: TargetInfo) -> object:
        if format_ != "table":
            return target.step_age_s
        return "none yet" if target.step_age_s is None else f"{age(target.step_age_s)} ago"

    def ended(target: TargetInfo) -> tuple[object, ...]:
        """When and how it ended, if one that has is shown."""
        at = target.ended_at or target.last_seen
        if not any_ended:
            return ()
        if target.alive or at is None:
            return (None, None)
        when = f"{age(time.time() - at)} ago" if format_ == "table" else at
        return (when, target.ended)

    targets = _shown(listed, dead)
    any_ended = any(not target.alive for target in targets)
    rows: list[tuple[object, ...]] = [
        (
            target.pid,
            target.job or None,
            target.rank,
            target.step,
            last_step(target),
            target.state,
            shown(target.age_s),
            *ended(target),
            " ".join(target.command),
            *(() if format_ == "table" else (target.stall or None,)),
        )
        for target in targets
    ]
    for candidate in sorted(listed.candidates, key=_unlike_training):
        place = (None, None, None, None)
        not_ended = (None, None) if any_ended else ()
        command = " ".join(candidate.command)
        stall = () if format_ == "table" else (None,)  # people read it as a remark
        rows.append((candidate.pid, *place, "no agent", shown(candidate.age_s), *not_ended, command, *stall))
    names, ages = ("last_step", "age"), "VARCHAR"
    if format_ != "table":
        names, ages = ("step_age_s", "age_s"), "DOUBLE"
    end_names = ("ended", "how") if format_ == "table" else ("ended_at", "ended")
    more = () if format_ == "table" else ("stall",)
    return Sheet(
        (*("pid", "job", "rank", "step", names[0], "state", names[1]), *end_names[: 2 * any_ended], "command", *more),
        (
            *("BIGINT", "VARCHAR", "BIGINT", "BIGINT", ages, "VARCHAR", ages),
            *((ages, "VARCHAR") if any_ended else ()),
            "VARCHAR",
            *("VARCHAR" for _ in more),
        ),
        rows,
    )


def _unlike_training(candidate: Candidate) -> tuple[bool, int]:
    command = " ".join(candidate.command)
    words = ("train", "torch", "pretrain", "finetune", "deepspeed", "accelerate", "serve", "vllm")
    return not any(word in command for word in words), candidate.pid
