"""A checkpoint could not be saved.

The call raised an exception, though the job may have caught it and gone on: what it has computed since its last good
checkpoint would be lost. A full disk, a quota, a folder that is gone or may not be written to, an object that cannot
be pickled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank
from probe_cli.text import mebibytes

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS saves, count(error) AS failed, min(step) FILTER (error IS NOT NULL) AS since,
    arg_max(error, ts) FILTER (error IS NOT NULL) AS error, arg_max(path, ts) FILTER (error IS NOT NULL) AS path,
    arg_max(free, ts) FILTER (error IS NOT NULL) AS free, arg_max(error IS NULL, ts) AS is_good_now,
    max(step) FILTER (error IS NULL) AS last_good
FROM python.checkpoints WHERE kind = 'save'
"""
_NO_SPACE = (
    "no space left",
    "disk quota exceeded",
    "errno 28",
    "errno 122",
    "file write failed",
    "enforce fail at inline_container",
)
#: Of an object among what is saved: a lambda, a local function, a lock, an open file.
_NOT_PICKLED = ("pickle", "not serializable")
_OF_OBJECTS = (
    "save states, not objects: state_dict() of the model, the optimizer and the schedule; a lambda, a local function,"
    " a lock or an open file in an object cannot be pickled",
    "let the exception end the job, or log it as an error: all that is computed since is lost with the job",
)
_OF_FOLDERS = ("check that the folder exists on every host, and may be written to",)


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["saves"]:
        raise NotApplicable("no checkpoint was saved since the recorder started")
    if not row["failed"]:
        return
    is_full = any(text in row["error"].lower() for text in _NO_SPACE[:4]) or (
        row["free"] is not None and row["free"] < 1
    )
    is_pickle = any(text in row["error"].lower() for text in _NOT_PICKLED)
    path = row["path"] or ""
    last = (
        "none has been saved since the recorder started"
        if row["last_good"] is None
        else f"the last good one is of step {row['last_good']}"
    )
    yield Finding(
        f"{row['failed']} of {row['saves']} checkpoints could not be saved"
        + (": no space is left" if is_full else "")
        + ("; the newest could" if row["is_good_now"] else ""),
        Certainty.CERTAIN,
        share=0.1 if row["is_good_now"] else 1.0,
        since_step=row["since"],
        evidence=(
            f"{row['path'] or 'a file without a path'}: {row['error']}",
            last + ("" if row["free"] is None else f"; {mebibytes(row['free'])} are free there"),
        ),
        advice=(
            *(("make space: df -h, quota -s; keep the last few checkpoints only",) if is_full else ()),
            *(_OF_OBJECTS if is_pickle else _OF_FOLDERS),
            "save once by hand to a place with space: `probe PID eval \"torch.save(model.state_dict(), '/tmp/x.pt')\"`",
        ),
        try_first="torch.save(model.state_dict(), path)" if is_pickle else f"df -h {path.rpartition('/')[0] or '.'}",
    )


RULE = Rule("checkpoint-failed", "checkpoints", "Were all checkpoints saved?", SQL, of_each_rank(judge))
