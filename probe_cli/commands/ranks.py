"""`probe … ranks`: one line for each rank of the job, where it is and how far it has come."""

from __future__ import annotations

import click

from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client
from probe_cli.cluster.fanout import Answers
from probe_cli.messages import remark
from probe_cli.options import format_option, timeout_option
from probe_cli.render import Sheet
from probe_cli.render.show import show, show_envelope
from probe_cli.session import Session
from probe_cli.text import age

__all__ = ["command"]

#: The step time is the median of this many steps.
NUM_STEPS = 20
SQL = f"""
SELECT pid, median(duration) FROM (
    SELECT pid, duration, row_number() OVER (PARTITION BY pid ORDER BY step DESC) AS newest FROM python.steps
) WHERE newest <= {NUM_STEPS} GROUP BY pid
"""


@click.command("ranks")
@format_option()
@timeout_option(5.0, "How long to wait for each host.")
@click.pass_obj
def command(session: Session, format_: str, timeout_s: float) -> int:
    """List every rank behind the endpoints: its host, PID, job, role in it (dp, tp, pp, … as far as they are known),
    newest step, the median time of its last 20 steps, its process state, how long ago its newest step ended, and the
    endpoint that names it alone.

    A host server leads to the whole job, as far as the job's own store tells where the other ranks are.
    """
    found = session.list_ranks(timeout_s)
    places = {endpoint: member.server if member.info.alive else endpoint for endpoint, member in found.answered}
    times = session.ask_these(tuple(dict.fromkeys(places.values())), _step_times, timeout_s=timeout_s)
    durations = {place: of_pid for place, (of_pid, _) in times.answered}
    for_people = format_ == "table"
    roles = tuple(dict.fromkeys(role for _, member in found.answered for role in member.info.roles))
    rows = [
        (
            member.info.rank,
            member.info.host,
            member.info.pid,
            member.info.job or None,
            *(member.info.roles.get(role) for role in roles),
            member.info.step,
            durations.get(places[endpoint], {}).get(member.info.pid),
            member.info.state,
            age(member.info.step_age_s) if for_people else member.info.step_age_s,
            str(endpoint),
        )
        for endpoint, member in found.answered
    ]
    columns = ("rank", "host", "pid", "job", *roles, "step", "step_time", "state", "last_seen", "endpoint")
    numbers = ("BIGINT",) * len(roles)
    types = ("BIGINT", "VARCHAR", "BIGINT", "VARCHAR", *numbers, "BIGINT", "DOUBLE", "VARCHAR", "VARCHAR", "VARCHAR")
    sheet = Sheet(columns, types, rows)
    notes = list(dict.fromkeys(note for _, (_, notes) in times.answered for note in notes))
    notes += [
        f"pid {member.info.pid}: {member.info.server_problem}"
        for _, member in found.answered
        if member.info.alive and member.info.server_problem
    ]
    notes += [f"{endpoint}: {member.info.stall}" for endpoint, member in found.answered if member.info.stall]
    answers = Answers(found.answered, found.unanswered + times.unanswered)
    # The rows are one list, whoever told them: JSON is a list as long as all of it is there.
    if format_ == "envelope":
        show_envelope(sheet, answers, notes)
    else:
        show(sheet, format_)
    for note in notes:
        remark(note)
    return answers.exit_code


async def _step_times(client: Client) -> tuple[dict[int, float], tuple[str, ...]]:
    answer = await client.send(QueryResult, "POST", "/v1/query", QueryRequest(SQL))
    times = {int(str(pid)): float(str(median)) for pid, median in answer.rows if median is not None}
    return times, tuple(answer.notes)
