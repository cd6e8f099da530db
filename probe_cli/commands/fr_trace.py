"""`probe fr-trace FOLDER`: which rank a hung job waited for, from the dumps of torch's Flight Recorder."""

from __future__ import annotations

import json
from pathlib import Path

import click

from probe_cli.cluster.hang.chain import Cause, stops
from probe_cli.cluster.hang.dumps import read_folder
from probe_cli.cluster.hang.text import evidence, sentence
from probe_cli.messages import remark
from probe_cli.text import ranks_text

__all__ = ["command"]

NONE, FOUND, UNKNOWN = 0, 1, 3


@click.command("fr-trace")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the answer is written.",
)
def command(folder: Path, format_: str) -> int:
    """Say which rank a hung job waited for, from FOLDER: one dump of torch's Flight Recorder for each rank.

    torch writes them when a collective runs into its timeout (TORCH_NCCL_DUMP_ON_TIMEOUT=1, TORCH_FR_DUMP_TEMP_FILE),
    as pickles; JSON is read as well, of NCCL and gloo, gzipped or not. The number at the end of a file's name is the
    rank. Nothing in a file is executed.

    The ranks are aligned by group and number. From each open call the chain of waits is followed to its end: ranks that
    have not come to a collective; that differ in operation, sizes or types; a send without its receive; ranks that wait
    for each other; a device that has not begun, or has not ended what all others have. A rank without a dump is named,
    and blamed where no other end is found.

    \b
    Exit codes:
      0  no rank is in a call
      1  the job hung: the ranks that hold up the others are named, or the call
      2  there is no dump, or two of a rank
      3  unknown: ranks left no dump, or one that cannot be read
    """
    ranks, unread = read_folder(folder)
    found = stops(ranks)
    expected = {rank for seen in ranks.values() for group in seen.groups for rank in group.ranks}
    missing = sorted(expected - set(ranks))
    is_known = any(stop.cause is not Cause.UNSEEN for stop in found)
    code = FOUND if is_known else UNKNOWN if found or missing or unread else NONE
    notes = [f"not read: {problem}" for problem in unread]
    if missing:
        notes.append(f"no dump of rank{'s' if missing[1:] else ''} {ranks_text(missing)}")
    if format_ == "json":
        stops_json = [
            {
                "cause": stop.cause.value,
                "ranks": list(stop.ranks),
                "group": stop.wait.group.name,
                "group_ranks": list(stop.wait.group.ranks),
                "seq": stop.wait.seq,
                "op": stop.wait.op,
                "waiting": list(stop.wait.inside),
                "held_up": list(stop.held_up),
                "sentence": sentence(stop, ranks),
                "evidence": evidence(stop, ranks),
            }
            for stop in found
        ]
        print(json.dumps({"stops": stops_json, "answered": sorted(ranks), "unanswered": missing, "notes": notes}))
        return code
    if not found:
        print(f"no rank is in a call: the dumps of {len(ranks)} ranks show no hang in a collective")
    for stop in found[:4]:
        print(sentence(stop, ranks))
        for line in evidence(stop, ranks):
            print(f"  {line}")
    for note in notes:
        remark(note)
    return code
