"""CUDA, the driver and torch do not fit each other.

A driver that is older than torch's CUDA needs cannot run its kernels; a torch that was built without CUDA, or a model
that was never moved, leaves the GPUs of the host idle without an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = """
SELECT env.*, gpus.*, models.*
FROM (
    SELECT max(value) FILTER (name = 'torch') AS torch, max(value) FILTER (name = 'cuda of torch') AS cuda,
        max(value) FILTER (name = 'hip of torch') AS hip, max(value) FILTER (name = 'nvidia driver') AS driver
    FROM process.env WHERE kind = 'version'
) AS env, (SELECT count(DISTINCT uuid) AS gpus, any_value(name) AS gpu FROM gpu.samples) AS gpus,
(SELECT list(DISTINCT device) AS devices, any_value(module) AS model FROM torch.modules WHERE depth = 0) AS models
"""
#: Major version of CUDA -> the oldest driver that runs its programs, by NVIDIA's table of minor version compatibility.
OLDEST_DRIVER = {11: 450, 12: 525, 13: 580}


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    (row,) = rows
    if not row["gpus"] and row["driver"] is None:
        raise NotApplicable("no NVIDIA GPU is known on the host")
    if row["torch"] is None:
        raise NoEvidence("the target has not told its torch")
    if row["cuda"] is None and row["hip"] is None:
        yield _finding(
            f"torch {row['torch']} was built without CUDA on a host with {row['gpus']} GPUs",
            Certainty.LIKELY,
            "install the build of torch for the host's CUDA: https://pytorch.org/get-started",
        )
        return
    cuda, driver = _major(row["cuda"]), _major(row["driver"])
    if cuda is not None and driver is not None and driver < OLDEST_DRIVER.get(cuda, 0):
        yield _finding(
            f"driver {row['driver']} is too old for CUDA {row['cuda']} of torch {row['torch']}",
            Certainty.CERTAIN,
            f"update the driver to {OLDEST_DRIVER[cuda]} or later, or install a torch for an older CUDA",
        )
    elif row["gpus"] and row["devices"] == ["cpu"]:
        yield _finding(
            f"{row['model']} is on the CPU on a host with {row['gpus']} GPUs",
            Certainty.POSSIBLE,
            'model.to("cuda") before the optimizer is made, and batches.to("cuda", non_blocking=True)',
        )


def _finding(sentence: str, certainty: Certainty, do: str) -> Finding:
    look = "python -c 'import torch; print(torch.version.cuda, torch.cuda.is_available())'; nvidia-smi"
    return Finding(sentence, certainty, advice=(do,), try_first=look)


def _major(version: str | None) -> int | None:
    first = (version or "").partition(".")[0]
    return int(first) if first.isdigit() else None


RULE = Rule(
    "cuda-mismatch",
    "set-up",
    "Do driver, CUDA and torch fit each other?",
    SQL,
    of_each_rank(judge),
    is_live=True,
)
