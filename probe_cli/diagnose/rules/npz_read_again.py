"""An array of an .npz file is read anew for each sample.

`numpy.load` of an .npz gives an object that reads an array from the zip file each time that it is asked for it:
`self.file["images"][index]` reads, checks and unpacks all images to take one. `mmap_mode` does nothing for such a file.
Told by the stacks of the training thread that are inside it, or by those of the data loader's workers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from probe_agent.wire import Frame
from probe_cli.cluster.folded import job_frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.job import Job
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import look_for
from probe_cli.diagnose.worker_stacks import worker_stacks
from probe_cli.text import percent

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, sum(duration) AS lasted, sum(coalesce(data_wait, 0) + coalesce(other, 0)) AS outside,
    sum(coalesce(data_wait, 0)) AS waited
FROM (FROM python.steps ORDER BY step DESC LIMIT 200)
"""
ADVICE = (
    "read each array once, in __init__ of the data set: images = file['images']",
    "save arrays that are too large for memory as .npy files, one each: numpy.load(path, mmap_mode='r')",
)
TRY_FIRST = "self.arrays = dict(numpy.load(path))"
#: Where NumPy reads an array of such a file.
_FILE, _FUNCTION = re.compile(r"/numpy/lib/_?npyio(_impl)?\.py$"), re.compile(r"(^|\.)__getitem__$")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    if row["outside"] >= limits["share"] * row["lasted"]:
        cost, share = row["lasted"] / row["steps"], row["waited"] / row["lasted"]
        yield Finding("a file may be read again", Certainty.SUSPECTED, cost_s=cost, share=share)


def _is_read(frames: Iterable[Frame]) -> bool:
    return any(_FILE.search(frame.file) and _FUNCTION.search(frame.func) for frame in frames)


_of_training_thread = look_for(
    lambda stack: _is_read(stack.frames),
    "reads whole arrays of an .npz file again, for one sample each",
    ADVICE,
    TRY_FIRST,
)


async def look(job: Job, found: Sequence[Finding], limits: Limits) -> Iterable[Finding]:
    """Look at the training thread, and where that waits for data, at the workers."""
    if told := list(await _of_training_thread(job, found, limits)):
        return told
    stacks = await worker_stacks(job, found[0].ranks[0])
    reads = [frames for frames in stacks if _is_read(frames)]
    if len(reads) < 2 or len(reads) < limits["workers"] * len(stacks):
        return []
    share = found[0].share or 0.0
    place = Counter(job_frame(frames) or "" for frames in reads).most_common(1)[0][0]
    part = len(reads) / len(stacks)
    return [
        replace(
            found[0],
            sentence="the data loader's workers read whole arrays of an .npz file again, for one sample each,"
            f" {percent(part)} of their time, and the step waits {percent(share)} of its own for data",
            certainty=Certainty.LIKELY,
            cost_s=(found[0].cost_s or 0.0) * share,
            where=place,
            evidence=(f"{len(reads)} of {len(stacks)} stacks of workers: {place}",),
            advice=ADVICE,
            try_first=TRY_FIRST,
        )
    ]


RULE = Rule(
    "npz-read-again",
    "speed",
    "Is an array of an .npz file read anew for each sample?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.15, "share of the training thread's time"),
        Threshold("workers", 0.5, "part of the stacks of workers that fetch samples"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("loader-without-workers", "loader-workers-busy", "data-bound", "python-bound", "slower-than-best"),
    look=look,
    on_host=True,
)
