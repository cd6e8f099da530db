"""Values that the job gives its models and loss modules and gets from them, and of batches, for `torch.arguments`.

The training thread copies some values in the next steps (steps/arguments.py); the thread that asks waits for them
and counts: about 1.5 ms for 4,096 values, of which the GIL is held for 0.2 ms at a time.
"""

from __future__ import annotations

import math
from _thread import allocate_lock
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import eq
from struct import calcsize, unpack
from time import monotonic, sleep
from typing import Any
from zlib import crc32

from ..job.rank import rank_and_size
from ..source import Recorder
from ..steps.arguments import Arguments, Sample
from ..steps.host_values import FORMATS, ROW
from ..torch import loaded

__all__ = ["answer"]

READS = True
WAIT_S, POLL_S = 1.5, 0.005
NUM_STEPS = 6
COLUMNS = (
    "call", "module", "library", "name", "shape", "dtype", "device", "read", "low", "high", "mean", "distinct",
    "common", "ignored", "same_as_first", "next_of_first", "end_ignored", "varies", "checksum",
)  # fmt: skip
_INTEGERS = ("int64", "int32")
#: Part of a text that may be ignored beside its end.
_FEW = 0.05
#: Rows, and values of a row, from which it is told how unlike rows are.
_MIN_ROWS, _MIN_VALUES = 4, 16
#: What torch's losses ignore among their targets.
_IGNORED = -100
_one_at_a_time = allocate_lock()


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per tensor of a call."""
    if loaded("torch.optim.optimizer") is None:
        return {"columns": COLUMNS, "rows": [], "notes": ["the target has not imported torch"]}
    if not _one_at_a_time.acquire(timeout=2 * WAIT_S):
        return {"columns": COLUMNS, "rows": [], "notes": ["others ask for the same: ask again"]}
    in_common = rank_and_size()[1] > 1
    watch = Arguments(recorder.at_step, recorder.step, recorder.device, NUM_STEPS, recorder.fail, in_common)
    try:
        recorder.at_step.submit(watch)
        deadline = monotonic() + WAIT_S
        while not watch.is_over and not recorder.at_step.closed and monotonic() < deadline:
            sleep(POLL_S)
    finally:
        recorder.at_step.withdraw(watch)
        watch.leave()
        _one_at_a_time.release()
    rows = list(_rows(watch.samples))
    return {"columns": COLUMNS, "rows": rows, "notes": [] if rows else ["no module was called in a step meanwhile"]}


def _rows(samples: list[Sample]) -> Iterator[list[object]]:
    for _, call in groupby(samples, lambda sample: sample.call):
        named = {sample.name: sample for sample in call}
        tokens = [one for one in named.values() if one.dtype in _INTEGERS and len(one.shape) == 2]
        mask = named.get("attention_mask")
        for sample in named.values():
            is_beside = bool(tokens) and sample in tokens[1:] and sample.shape == tokens[0].shape
            is_masked = mask is not None and sample in tokens and sample.shape == mask.shape and len(mask.rows) > 0
            yield [
                sample.call, sample.module, sample.library, sample.name, "x".join(map(str, sample.shape)),
                sample.dtype, sample.device, *_counted(sample), *_compared(sample, tokens[0] if is_beside else None),
                _end_ignored(sample, mask) if is_masked and mask is not None else None, _varies(sample),
                crc32(b"".join(sample.rows)) if sample.rows else None,
            ]  # fmt: skip


def _values(sample: Sample) -> list[list[Any]]:
    kind = FORMATS.get(sample.dtype)
    return [list(unpack(f"{len(row) // calcsize(kind)}{kind}", row)) for row in sample.rows] if kind else []


def _counted(sample: Sample) -> list[object]:
    values = [value for row in _values(sample) for value in row]
    if not values:
        return [0, None, None, None, None, None, None]
    counts = Counter(values)
    common = counts.most_common(1)[0][1] / len(values)
    ignored = counts[_IGNORED] / len(values) if sample.dtype in _INTEGERS else None
    low, high, mean = float(min(values)), float(max(values)), sum(values) / len(values)
    return [len(values), low, high, mean, len(counts), common, ignored]


def _end_ignored(sample: Sample, mask: Sample) -> float | None:
    """Return the part of the rows whose last attended value is ignored, and hardly any other attended one."""
    if sample.shape[1] > ROW:
        return None  # parts of its rows were read
    ends = 0
    for own, attended in zip(_values(sample), _values(mask)):
        kept = [value for value, is_attended in zip(own, attended) if is_attended]
        others = sum(value == _IGNORED for value in kept[:-1])
        ends += bool(kept[1:]) and kept[-1] == _IGNORED and others <= _FEW * len(kept)
    return ends / len(sample.rows) if sample.rows else None


def _varies(sample: Sample) -> float | None:
    """Return which part of the deviation of the values is that of a column around its mean: 0 where all rows are
    alike."""
    rows = _values(sample)
    if len(rows) < _MIN_ROWS or len(rows[0]) < _MIN_VALUES:
        return None
    mean = sum(map(sum, rows)) / len(rows) / len(rows[0])
    # Not ** 2, which raises where a square is too large.
    total = sum((value - mean) * (value - mean) for row in rows for value in row)
    means = [sum(column) / len(rows) for column in zip(*rows)]
    within = sum((value - own) * (value - own) for row in rows for value, own in zip(row, means))
    return math.sqrt(within / total) if 0 < total < math.inf else None


def _compared(sample: Sample, first: Sample | None) -> list[object]:
    """Return the parts of the values that are those of the first tensor, at the same position and at the next one."""
    if first is None:
        return [None, None]
    same = after = num = 0
    for own, other in zip(_values(sample), _values(first)):
        kept = [(one, two, third) for one, two, third in zip(own, other, other[1:]) if one != _IGNORED]
        num += len(kept)
        same += sum(map(eq, (one for one, _, _ in kept), (two for _, two, _ in kept)))
        after += sum(map(eq, (one for one, _, _ in kept), (third for _, _, third in kept)))
    return [same / num, after / num] if num else [None, None]
