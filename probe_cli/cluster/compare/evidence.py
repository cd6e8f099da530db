"""Evidence beside the waits: other tables of a named rank and of its peers (CPU, page faults, garbage collector,
clocks), and the line of the job that takes the time, by stacks sampled of both at once.

None of it explains anything by itself: each is said only where the rank differs plainly from its peers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

import numpy as np

from probe_cli.text import percent

from .facts import Columns, Facts

__all__ = [
    "NEEDS",
    "Beside",
    "Place",
    "beside",
    "line_text",
    "part_suspended",
    "rate",
    "rates",
    "sample_period",
    "slow_line",
]

#: What the named ranks and some peers are asked for.
NEEDS = ("samples", "pauses", "gpu_clock", "modules")
#: A rate differs plainly when it is so many times the peers', and by so much a second.
TIMES, MIN_FAULTS, MIN_SWITCHES = 3.0, 5.0, 10.0
#: Page faults without a disk take about a microsecond each.
MIN_NEW_PAGES = 20_000.0
#: CPU a rank gets: less than so much of what its peers get.
LESS_CPU = 0.8
#: Part of the time that it waits for a CPU, beyond the peers'.
MIN_DELAY = 0.02
#: Part of the time in the collector, beyond the peers'.
MIN_PAUSES = 0.03
#: Part of the time that its process stood still at least, without the collector, which keeps the GIL.
MIN_SUSPENDED = 0.05
#: CPU of the threads that do not train, in cores.
MIN_CORES = 0.1
#: A GPU's clock below that of its peers.
LOWER_CLOCK = 0.93


#: What was called, or the job's own function; and the job's line: ("torch.save", "train.py:88").
Place = tuple[str, str]
#: The least part of the time that a line must take beyond what it takes on a peer, and of the samples that it takes.
MIN_EXCESS, MIN_SAMPLES = 0.05, 5
#: Standard deviations of it that are chance: a step has some dozens of lines, and one of them is ahead.
BY_CHANCE = 2.5
#: What a call is for, where its name tells.
_MEANS = {"torch.save": "saves a checkpoint", "torch.load": "loads a checkpoint"}


@dataclass(frozen=True)
class Beside:
    """Sentences, and the same as fields: what the rank has, and the median of its peers."""

    sentences: tuple[str, ...]
    fields: Mapping[str, tuple[float | None, float | None]]


def beside(mine: Facts, peers: Sequence[Facts], since: float, until: float, *, starved: bool) -> Beside:
    """What stands out in `mine` from `since` to `until` on our clock. `starved`: all its phases are longer."""
    fields: dict[str, tuple[float | None, float | None]] = {}
    for name, measure in _MEASURES.items():
        own = measure(mine, since, until)
        others = [value for peer in peers if (value := measure(peer, since, until)) is not None]
        if own is not None:
            fields[name] = own, median(others) if others else None
    texts = (
        _cpu(fields, starved),
        _faults(fields),
        _new_pages(fields),
        _pauses(fields),
        _suspended(fields),
        _other_threads(fields) if starved else "",
        _clock(fields),
    )
    return Beside(tuple(text for text in texts if text), fields)


def _cpu(fields: Mapping[str, tuple[float | None, float | None]], starved: bool) -> str:
    said = [_delay("it waits", *fields.get("run_delay", (None, None)), 1.0)]
    said += [_delay("its other threads wait", *fields.get("run_delay_others", (None, None)), TIMES)]
    if any(said):
        return ", ".join(text for text in said if text)
    share, others_share = fields.get("cpu_share", (None, None))
    switches, others = fields.get("involuntary_switches", (None, None))
    if share is None or switches is None:
        return ""
    is_torn = switches >= MIN_SWITCHES and switches >= TIMES * (others or 0.0)
    is_short = others_share is not None and share < LESS_CPU * others_share
    if not is_torn and not (starved and is_short):
        return ""
    usual = "" if others_share is None else f" (its peers' {percent(others_share)})"
    rate = f", involuntary switches {switches:.0f}/s" + ("" if others is None else f" (its peers' {others:.0f}/s)")
    return f"its training thread gets {percent(share)} of a CPU{usual}{rate}"


def _delay(waits: str, delay: float | None, others: float | None, times: float) -> str:
    if delay is None or others is None or delay - others < MIN_DELAY or delay < times * others:
        return ""
    return f"{waits} for a CPU {percent(delay)} of the time (its peers {percent(others)})"


def _faults(fields: Mapping[str, tuple[float | None, float | None]]) -> str:
    faults, others = fields.get("major_faults", (None, None))
    if faults is None or faults < MIN_FAULTS or faults < TIMES * (others or 0.0):
        return ""
    return f"{faults:.0f} page faults a second wait for a disk"


def _new_pages(fields: Mapping[str, tuple[float | None, float | None]]) -> str:
    faults, others = fields.get("page_faults", (None, None))
    if faults is None or others is None or faults < MIN_NEW_PAGES or faults < TIMES * others:
        return ""
    return (
        f"it takes {faults:,.0f} new pages a second (its peers' {others:,.0f}): its allocator gives memory back and"
        " takes it anew (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_)"
    )


def _pauses(fields: Mapping[str, tuple[float | None, float | None]]) -> str:
    part, others = fields.get("collector", (None, None))
    if part is None or part - (others or 0.0) < MIN_PAUSES:
        return ""
    return f"Python's garbage collector takes {percent(part)} of its time (its peers' {percent(others or 0.0)})"


def _suspended(fields: Mapping[str, tuple[float | None, float | None]]) -> str:
    period, usual = fields.get("sample_period", (None, None))
    if period is None or usual is None:
        return ""
    part = part_suspended(period, usual)
    if part - (fields.get("collector", (None, None))[0] or 0.0) < MIN_SUSPENDED:
        return ""
    return (
        f"none of its Python threads ran {percent(part)} of the time or more: the process was stopped (a signal, a"
        " debugger, its cgroup), or something kept the GIL"
    )


def _other_threads(fields: Mapping[str, tuple[float | None, float | None]]) -> str:
    cores, others = fields.get("cpu_others", (None, None))
    if cores is None or others is None or cores < MIN_CORES or cores < TIMES * others:
        return ""
    return (
        f"its other threads use {percent(cores)} of a CPU (its peers' {percent(others)}), and keep the GIL meanwhile if"
        " they run Python"
    )


def part_suspended(period: float, usual: float) -> float:
    """The part of the time by which samples came late; what stands still between two samples is not seen."""
    return max(0.0, 1 - usual / period)


def _clock(fields: Mapping[str, tuple[float | None, float | None]]) -> str:
    clock, others = fields.get("gpu_clock", (None, None))
    if clock is None or others is None or clock >= LOWER_CLOCK * others:
        return ""
    return f"its GPU runs at {clock:.0f} MHz (its peers' {others:.0f})"


def rate(fact: Facts, column: str, since: float, until: float) -> float | None:
    """Return a column of process.samples per second; None if it is not known of half of that time."""
    rows = fact.samples
    if not rows or until <= since or column not in rows:
        return None
    ended = rows["ts"] - fact.offset
    inside = np.minimum(ended, until) - np.maximum(ended - rows["period"], since)
    known = (inside > 0) & np.isfinite(rows[column])
    if inside[known].sum() < (until - since) / 2:
        return None
    part = inside[known] / rows["period"][known]
    return float((rows[column][known] * part).sum() / inside[known].sum())


def rates(fact: Facts, column: str, since: float, until: float) -> np.ndarray:
    """Return a column of process.samples per second, one number for each sample of that time whose value is known."""
    rows = fact.samples
    if not rows or column not in rows:
        return np.zeros(0)
    ended = rows["ts"] - fact.offset
    inside = (ended - rows["period"] >= since - rows["period"] / 2) & (ended <= until + rows["period"] / 2)
    inside &= np.isfinite(rows[column])
    found: np.ndarray = rows[column][inside] / rows["period"][inside]
    return found


def sample_period(fact: Facts, since: float, until: float) -> float | None:
    """Mean seconds between two samples of that time; None if there are fewer than three."""
    rows = _between(fact.samples, fact, since, until)
    return None if rows is None or len(rows["period"]) < 3 else float(rows["period"].mean())


def _rate(column: str) -> Measure:
    return lambda fact, since, until: rate(fact, column, since, until)


def _cpu_of_others(fact: Facts, since: float, until: float) -> float | None:
    """Cores that the threads which do not train keep busy."""
    cpu, training = (rate(fact, column, since, until) for column in ("cpu", "cpu_training"))
    return None if cpu is None or training is None else max(0.0, cpu - training)


def _collector(fact: Facts, since: float, until: float) -> float | None:
    """Part of the time in which Python's collector ran."""
    if not fact.samples:
        return None  # then it is not known since when the recorder is there
    rows = _between(fact.pauses, fact, since, until)
    return 0.0 if rows is None else float(rows["duration"].sum() / (until - since))


def _gpu_clock(fact: Facts, since: float, until: float) -> float | None:
    return fact.gpu_clock


def _between(rows: Columns, fact: Facts, since: float, until: float) -> Columns | None:
    """Those of `rows` that are of this time, None of none."""
    if not rows or until <= since:
        return None
    ts = rows["ts"] - fact.offset
    wanted = (ts >= since) & (ts <= until)
    return {name: values[wanted] for name, values in rows.items()} if wanted.any() else None


def slow_line(mine: Mapping[Place, int], peer: Mapping[Place, int]) -> Place | None:
    """The line that takes more of the samples of `mine` than of `peer`, by most; None where no line stands out."""
    num_mine, num_peer = sum(mine.values()), sum(peer.values())
    if not num_mine or not num_peer:
        return None
    parts = {place: (count / num_mine, peer.get(place, 0) / num_peer) for place, count in mine.items()}
    found = {
        place: part - usual
        for place, (part, usual) in parts.items()
        if mine[place] >= MIN_SAMPLES
        and part - usual
        >= max(MIN_EXCESS, BY_CHANCE * sqrt(part * (1 - part) / num_mine + usual * (1 - usual) / num_peer))
    }
    return max(found, key=lambda place: found[place], default=None)


def line_text(place: Place) -> str:
    """`while it saves a checkpoint (torch.save at train.py:88)`, `at load in train.py:41`."""
    what, where = place
    means = _MEANS.get(what)
    return f"while it {means} ({what} at {where})" if means else f"in {what} at {where}"


Measure = Callable[[Facts, float, float], float | None]
_MEASURES: dict[str, Measure] = {
    "cpu_share": _rate("cpu_training"),
    "cpu_others": _cpu_of_others,
    "run_delay": _rate("run_delay"),
    "run_delay_others": _rate("run_delay_others"),
    "involuntary_switches": _rate("forced_switches"),
    "major_faults": _rate("major_faults"),
    "page_faults": _rate("page_faults"),
    "collector": _collector,
    "sample_period": sample_period,
    "gpu_clock": _gpu_clock,
}
