"""A look as text: cells of a row, sparklines, phases, and the sentence above them. Plain functions."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from probe_cli.diagnose import Diagnosis
from probe_cli.render.terminal import visible
from probe_cli.text import age, mebibytes, num_ranks, percent, seconds

from .look import PHASES, Look, RankLook

__all__ = ["LETTERS", "SORTS", "found", "is_silent", "letters", "line_of", "place", "sentence", "sorted_by", "spark"]

#: How a phase is drawn.
LETTERS: Mapping[str, str] = dict(zip(PHASES, "DFBOEG·", strict=True))
_BLOCKS = "▁▂▃▄▅▆▇█"
#: No step for so many usual ones, and for so long, is worth red.
SILENT_STEPS, SILENT_S = 10, 5.0


def is_silent(rank: RankLook) -> bool:
    """Whether it has ended no step for long."""
    if rank.age is None or rank.usual is None:
        return False
    return rank.age > max(SILENT_S, SILENT_STEPS * rank.usual)


def spark(values: Sequence[float], width: int, low: float, high: float) -> str:
    """The newest values as blocks between `low` and `high`; of several that share a block the largest."""
    if not values or width < 1:
        return ""
    each = -(-len(values) // width)
    first = len(values) % each
    groups = [values[:first]] * bool(first) + [values[at : at + each] for at in range(first, len(values), each)]
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round(min(max(max(group) - low, 0.0), high - low) * scale)] for group in groups)


def letters(shares: Mapping[str, float], width: int) -> str:
    """The time of a step as one letter each for its parts: DDFFFBBBBO."""
    if not shares:
        return ""
    drawn, told, total = "", 0.0, 0
    for name in PHASES:
        told += shares.get(name, 0.0)
        number = round(told * width) - total
        drawn += LETTERS[name] * number
        total += number
    return drawn[:width]


def place(rank: RankLook, width: int | None = None) -> str:
    """`train.py:88 train_step`; why there is none, if it has not answered. Where `width` has no room for a long file
    name, it loses its beginning: the number of the line stays."""
    if rank.problem:
        return visible(rank.problem)
    if rank.line is None:
        return ""
    func, file, lineno = rank.line
    at = visible(f"{os.path.basename(file)}:{lineno}")
    if width is not None and len(at) > width:
        return "…" + at[len(at) - width + 1 :]
    return f"{at} {visible(func)}"


def sentence(look: Look) -> str:
    """What all ranks together do."""
    num_asked = len(look.ranks) + len(look.missing)
    known = [rank for rank in look.ranks if rank.step is not None]
    silent = [rank for rank in look.ranks if rank.problem]
    answered = f"{len(look.ranks) - len(silent)} of {num_asked} ranks answered: " if silent or look.missing else ""
    if not known:
        return answered + "no step is recorded yet"
    youngest = min(known, key=lambda rank: rank.age or 0.0)
    usual = median(rank.usual for rank in known if rank.usual is not None)
    newest = max(rank.step for rank in known if rank.step is not None)
    if all(map(is_silent, known)):
        ended = "" if any(rank.info.alive for rank in known) else "; the job has ended"
        return f"{answered}no step for {age(youngest.age)}, usual {seconds(usual)}{ended}"
    rate = f"{1 / usual:.3g} steps/s" if usual else "no rate"
    return f"{answered}stepping: step {newest:,}, {seconds(usual)} each, {rate}{_apart(known, newest)}"


def _apart(known: Sequence[RankLook], newest: int) -> str:
    behind = [rank for rank in known if is_silent(rank)]
    if behind:
        return f"; silent: {num_ranks(rank.info.rank or 0 for rank in behind)}"
    slow = [rank for rank in known if (rank.waited is not None)]
    if len(slow) < 2:
        return ""
    least = min(slow, key=lambda rank: rank.waited or 0.0)
    others = median(rank.waited or 0.0 for rank in slow if rank is not least)
    lasted = least.steps.get("lasted") or 0.0
    if lasted and others - (least.waited or 0.0) > 0.05 * lasted:
        return f"; rank {least.info.rank} waits least for the others ({percent((least.waited or 0.0) / lasted)})"
    return ""


def found(diagnosis: Diagnosis, at_most: int) -> list[str]:
    """The findings, a line each, and what could not be judged."""
    unjudged = f"; {len(diagnosis.unjudged)} rules could not judge" if diagnosis.unjudged else ""
    if not diagnosis.findings:
        return [f"nothing found by {len(diagnosis.silent)} rules{unjudged}"]
    lines = []
    for one in diagnosis.findings[:at_most]:
        of = f" ({num_ranks(one.ranks)})" if one.ranks else ""
        lines.append(visible(f"{one.rule}: {one.sentence}{of}"))
    more = len(diagnosis.findings) - at_most
    if more > 0 or unjudged:
        lines.append(
            (f"{more} more findings" if more > 0 else "").strip() + unjudged.removeprefix("; " if more <= 0 else "")
        )
    return lines


def line_of(rank: RankLook) -> str:
    """One rank as a plain line."""
    who = f"rank {rank.info.rank}" if rank.info.rank is not None else f"pid {rank.info.pid}"
    if rank.problem:
        return f"{who}  {visible(rank.problem)}"
    parts = [who, "no step yet" if rank.step is None else f"step {rank.step}"]
    if rank.usual is not None and rank.age is not None:
        parts += [f"{seconds(rank.usual)} each", f"last {seconds(rank.age)} ago"]
        shares = sorted(rank.shares.items(), key=lambda share: -share[1])
        parts += [f"{name} {percent(share)}" for name, share in shares[:3] if share >= 0.005]
    parts += [mebibytes(rank.memory)] if rank.memory is not None else []
    parts += [f"GPU {percent(rank.gpu)}"] if rank.gpu is not None else []
    return "  ".join([*parts, place(rank)]).rstrip()


def _rank(rank: RankLook) -> tuple[bool, float]:
    return rank.info.rank is None, float(rank.info.rank or 0)


#: How rows can be sorted, and by what; what is not known comes last.
SORTS: Mapping[str, Callable[[RankLook], float | None]] = {
    "rank": lambda rank: None,
    "step time": lambda rank: None if rank.usual is None else -rank.usual,
    "data wait": lambda rank: -rank.shares["data_wait"] if rank.shares else None,
    "least wait": lambda rank: rank.waited,
    "memory": lambda rank: None if rank.memory is None else -rank.memory,
    "step": lambda rank: rank.step,
}


def sorted_by(name: str, ranks: Sequence[RankLook]) -> list[RankLook]:
    """The ranks, those first that stand out by `name`."""

    def key(rank: RankLook) -> tuple[bool, float, tuple[bool, float]]:
        value = SORTS[name](rank)
        return value is None, value or 0.0, _rank(rank)

    return sorted(ranks, key=key)
