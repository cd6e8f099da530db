"""An array of an .npz file is read anew for each sample.

`numpy.load` of an .npz gives an object that reads an array from the zip file each time that it is asked for it:
`self.file["images"][index]` reads, checks and unpacks all images to take one. `mmap_mode` does nothing for such a file.
Told by the stacks of the training thread that are inside it; data loader workers that do it are not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, Threshold, of_each_rank
from probe_cli.diagnose.sampling import Stack, look_for

__all__ = ["RULE"]

SQL = """
SELECT count(*) AS steps, sum(duration) AS lasted, sum(coalesce(data_wait, 0) + coalesce(other, 0)) AS outside
FROM (FROM python.steps ORDER BY step DESC LIMIT 200)
"""
#: Where NumPy reads an array of such a file.
_FILE, _FUNCTION = re.compile(r"/numpy/lib/_?npyio(_impl)?\.py$"), re.compile(r"(^|\.)__getitem__$")


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if row["steps"] < limits["steps"]:
        raise NoEvidence(f"{row['steps']} steps recorded, {limits['steps']:.0f} needed: ask again later")
    if row["outside"] >= limits["share"] * row["lasted"]:
        yield Finding("a file may be read again", Certainty.SUSPECTED, cost_s=row["lasted"] / row["steps"])


def _reads(stack: Stack) -> bool:
    return any(_FILE.search(frame.file) and _FUNCTION.search(frame.func) for frame in stack.frames)


RULE = Rule(
    "npz-read-again",
    "speed",
    "Is an array of an .npz file read anew for each sample?",
    SQL,
    of_each_rank(judge),
    (
        Threshold("share", 0.15, "share of the training thread's time"),
        Threshold("steps", 20, "steps needed to judge"),
    ),
    explains=("loader-without-workers", "data-bound", "python-bound", "slower-than-best"),
    look=look_for(
        _reads,
        "reads whole arrays of an .npz file again, for one sample each",
        (
            "read each array once, in __init__ of the data set: images = file['images']",
            "save arrays that are too large for memory as .npy files, one each: numpy.load(path, mmap_mode='r')",
        ),
        "self.arrays = dict(numpy.load(path))",
    ),
    on_host=True,
)
