"""A trace of all ranks in the Trace Event Format, which Perfetto and chrome://tracing open. Pure functions.

Each rank is a process with these tracks: its steps with their phases inside, its modules in the steps that were sampled
(forward inside forward), its collectives with the wait inside, the job's own spans, and counters. An arrow leads
through the ranks of a collective in the order in which they came to it.

The phases of a step are recorded as durations. They are drawn in the order in which a step takes them, one behind the
other; all other times are as recorded, on the clock that all ranks share.

Times in a file are in microseconds since its first event. Perfetto nests what lies inside something else on a track,
and drops what only overlaps it: so what overlaps gets a further track.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from math import isfinite
from typing import Any, BinaryIO

from .timeline import COUNTERS, Told

__all__ = ["PHASES", "Slice", "Trace", "trace_of", "write_trace"]

#: In the order in which they are drawn: a step begins where the optimizer ended.
PHASES = ("other", "evaluation", "generation", "data_wait", "forward", "backward", "optimizer")
#: Times may overlap by so much from rounding alone.
ROUNDING_S = 3e-6
#: Two rows of one send or receive may differ so much in when it began.
SAME_S = 20e-6
#: Of a track, its number on the first lane; further lanes follow it.
STEPS, SPANS, MODULES, CALLS, PAUSES = 1000, 2000, 3000, 4000, 5000
NAMES = {STEPS: "steps", SPANS: "spans", MODULES: "modules", CALLS: "collectives", PAUSES: "garbage collector"}

Event = dict[str, Any]  # an object as the format has it


@dataclass
class Slice:
    """Something that took from `start` to `end`, in seconds on the shared clock; `inside` lies in it."""

    name: str
    kind: str
    start: float
    end: float
    args: Mapping[str, object] = field(default_factory=dict)
    inside: list[Slice] = field(default_factory=list)
    lane: int = 0

    def walk(self) -> Iterator[Slice]:
        yield self
        for one in self.inside:
            yield from one.walk()


@dataclass
class Trace:
    """Slices by track of each rank, its counters, and the calls of each collective in the order of their start."""

    ranks: list[Told]
    tracks: list[dict[int, list[Slice]]] = field(default_factory=list)
    counters: list[list[tuple[float, str, float]]] = field(default_factory=list)
    met: list[list[tuple[int, Slice]]] = field(default_factory=list)

    @property
    def began(self) -> float:
        """The first moment in it, in seconds since 1970; now where there is none."""
        starts = [one.start for tracks in self.tracks for slices in tracks.values() for one in slices]
        starts += [moment for values in self.counters for moment, _, _ in values[:1]]
        return min(starts, default=datetime.now(timezone.utc).timestamp())

    @property
    def num_slices(self) -> int:
        return sum(1 for tracks in self.tracks for slices in tracks.values() for one in slices for _ in one.walk())


def trace_of(ranks: Sequence[Told], num_steps: int, now: float) -> Trace:
    """The newest `num_steps` of each rank; `now` is by our clock, in seconds since 1970."""
    trace = Trace(list(ranks))
    together: dict[tuple[object, ...], list[tuple[int, Slice]]] = {}
    for at, told in enumerate(ranks):
        steps = _steps(told, num_steps)
        since = min((one.start for one in steps), default=-float("inf")) - ROUNDING_S
        calls = _calls(told, since, now)
        tracks = {
            STEPS: _nested(steps),
            SPANS: _nested(_spans(told, since)),
            MODULES: _nested(_modules(told, since)),
            CALLS: _side_by_side([one for _, one in calls]),
            PAUSES: _side_by_side(_pauses(told, since)),
        }
        trace.tracks.append(tracks)
        trace.counters.append(list(_values(told, since)))
        for key, one in calls:
            if key:
                together.setdefault(key, []).append((at, one))
    for met in together.values():
        if len(met) > 1:
            met.sort(key=lambda one: one[1].start)
            for _, one in met:
                one.args = {**one.args, "after_the_first_ms": round((one.start - met[0][1].start) * 1e3, 3)}
            trace.met.append(met)
    return trace


def _rows(columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    lists = [values.tolist() for values in columns.values()]
    return (dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True))


def _steps(told: Told, num_steps: int) -> list[Slice]:
    found = []
    newest: dict[int, dict[str, Any]] = {row["number"]: row for row in _rows(told.facts.steps)}
    for number in sorted(newest)[-num_steps:]:
        row = newest[number]
        end = row["ended"] - told.offset
        whole = Slice(f"step {number}", "step", end - row["duration"], end, {"step": number, "sampled": row["sampled"]})
        whole.inside = list(_phases(whole, row))
        found.append(whole)
    return found


def _phases(whole: Slice, row: Mapping[str, Any]) -> Iterator[Slice]:
    at = whole.start
    for name in PHASES:
        duration = row[name]
        if duration is not None and isfinite(duration) and duration > 0:
            end = min(at + duration, whole.end)
            yield Slice(name, "phase", at, end, {"step": whole.args["step"]})
            at = end


def _modules(told: Told, since: float) -> list[Slice]:
    found = []
    for row in told.modules:
        step, ended, duration, module, stage, phase, own, on_device, more, recomputed, compiled = row
        end = float(str(ended)) - told.offset
        start = end - float(str(duration))
        if start >= since:
            args = {
                "step": step,
                "phase": phase,
                "self_ms": _ms(own),
                "device_ms": _ms(on_device),
                "allocated_mib": more,
                "recomputed": recomputed or None,
                "compiled": compiled or None,
            }
            found.append(Slice(f"{module} {stage}", f"module,{stage}", start, end, _known(args)))
    return found


def _spans(told: Told, since: float) -> list[Slice]:
    found = []
    for step, began, duration, name, path, thread, error in told.spans:
        start = float(str(began)) - told.offset
        if start >= since:
            args = _known({"step": step, "path": path, "thread": thread, "error": error})
            found.append(Slice(str(name or "span"), "span", start, start + float(str(duration)), args))
    return found


def _calls(told: Told, since: float, now: float) -> list[tuple[tuple[object, ...], Slice]]:
    """The collectives, sends and receives, each once, with the key that it has on all ranks of its group; empty for
    those that are not matched."""
    once: dict[tuple[object, ...], tuple[tuple[object, ...], Slice]] = {}
    #: Sends and receives that have a row from while they waited: when they began, and their key in `once`.
    waiting: dict[tuple[object, ...], tuple[float, tuple[object, ...]]] = {}
    rows = sorted(_rows(told.facts.calls), key=lambda row: (row["start"], not row["is_open"], row["ended"]))
    for number, row in enumerate(rows):
        start = row["start"] - told.offset
        if start < since:
            continue
        group = told.facts.groups.get(row["group"])
        members = group.ranks if group is not None else ()
        is_met = row["seq"] >= 0 and row["op"] not in ("send", "recv")
        key = (row["group"], members, row["seq"]) if is_met else ()
        wait = row["wait"] if row["wait"] is not None and isfinite(row["wait"]) else None
        waits = row["is_open"] and wait is not None
        end = now if waits and told.alive else row["ended"] - told.offset
        # A device runs it, C++ called it (DDP's reducer), or nothing has waited for it: then only its start is known.
        is_known = waits or not (row["on_device"] or row["by_cpp"] or row["is_open"])
        args = {
            "group": row["group"],
            "group_desc": group.desc if group is not None else None,
            "seq": row["seq"] if row["seq"] >= 0 else None,
            "bytes": row["bytes"],
            "peer": row["peer"] if row["peer"] >= 0 else None,
            "phase": row["phase"] or None,
            "step": row["step"] if row["step"] >= 0 else None,
            "state": "waiting" if waits else None if is_known else "its end is not known",
        }
        one = Slice(
            row["op"] or "collective", "collective", start, max(start, end) if is_known else start, _known(args)
        )
        if is_known and not waits and wait is not None and 0 < wait < one.end - one.start - ROUNDING_S:
            one.inside = [Slice("wait", "wait", one.end - wait, one.end)]
        place = (row["group"], row["op"], row["peer"])
        if not key and abs(start - waiting.get(place, (0.0, ()))[0]) < SAME_S:
            del once[waiting.pop(place)[1]]  # it was over later
        same = key or (number,)
        if not key and row["is_open"]:
            waiting[place] = (start, same)
        once[same] = (key, one)
    return list(once.values())


def _pauses(told: Told, since: float) -> list[Slice]:
    ends = ((row["ts"] - told.offset, row["duration"]) for row in _rows(told.facts.pauses))
    return [Slice("collection", "gc", end - took, end) for end, took in ends if end - took >= since]


def _values(told: Told, since: float) -> Iterator[tuple[float, str, float]]:
    for ended, *values in told.values:
        moment = float(str(ended)) - told.offset
        for name, value in zip(COUNTERS, values, strict=True):
            if isinstance(value, int | float) and moment >= since:  # NaN comes as a text
                yield moment, name, float(value)


def _known(args: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in args.items() if value is not None}


def _ms(value: object) -> float | None:
    return round(value * 1e3, 6) if isinstance(value, int | float) else None


def _nested(slices: Iterable[Slice]) -> list[Slice]:
    """The slices, each on the first lane where it lies inside others or beside them."""
    lanes: list[list[Slice]] = []
    ordered = sorted(slices, key=lambda one: (one.start, -one.end))
    for one in ordered:
        for lane, around in enumerate([*lanes, []]):
            while around and around[-1].end <= one.start + ROUNDING_S:
                one.start = max(one.start, around.pop().end)
            if not around or one.end <= around[-1].end + ROUNDING_S:
                if around:
                    one.start, one.end = max(one.start, around[-1].start), min(one.end, around[-1].end)
                one.end = max(one.end, one.start)
                if lane == len(lanes):
                    lanes.append(around)
                around.append(one)
                one.lane = lane
                break
    for one in ordered:
        for part in one.inside:
            part.start, part.end = max(part.start, one.start), min(part.end, one.end)
    return ordered


def _side_by_side(slices: Iterable[Slice]) -> list[Slice]:
    """The slices, each on the first lane where it overlaps no other."""
    ends: list[float] = []
    ordered = sorted(slices, key=lambda one: (one.start, -one.end))
    for one in ordered:
        one.lane = next((lane for lane, end in enumerate(ends) if end <= one.start), len(ends))
        ends[one.lane : one.lane + 1] = [one.end]
    return ordered


def write_trace(file: BinaryIO, trace: Trace) -> None:
    """Write `trace` as JSON, one event a line."""
    clocks = {told.facts.who.host: told.facts.clock for told in trace.ranks}
    about = {
        "began": datetime.fromtimestamp(trace.began, timezone.utc).isoformat(),
        "clocks": [
            {"host": host, **({"offset_s": clock.offset, "uncertainty_s": clock.uncertainty} if clock else {})}
            for host, clock in clocks.items()
        ],
    }
    file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'.encode())
    separator = b""
    for event in _events(trace):
        file.write(separator + json.dumps(event, ensure_ascii=False).encode("utf-8", "replace"))
        separator = b",\n"
    file.write(b"\n]}\n")


def _events(trace: Trace) -> Iterator[Event]:
    began = trace.began

    def us(moment: float) -> float:
        return round((moment - began) * 1e6, 3)

    # From 1: to Perfetto, process 0 is the idle one of the kernel.
    for process, (told, tracks) in enumerate(zip(trace.ranks, trace.tracks, strict=True), 1):
        yield from _names(process, told, tracks)
        for track, slices in tracks.items():
            for whole in slices:
                for one in whole.walk():
                    yield {
                        "ph": "X", "pid": process, "tid": track + whole.lane, "name": one.name, "cat": one.kind,
                        "ts": us(one.start), "dur": max(0.0, round(us(one.end) - us(one.start), 3)),
                        "args": one.args,
                    }  # fmt: skip
        for moment, name, value in trace.counters[process - 1]:
            yield {"ph": "C", "pid": process, "name": name, "ts": us(moment), "args": {"value": value}}
    for number, met in enumerate(trace.met):
        last = len(met) - 1
        for at, (process, one) in enumerate(met):
            place = {"pid": process + 1, "tid": CALLS + one.lane, "ts": us(one.start)}
            kind = "s" if at == 0 else "f" if at == last else "t"
            yield {"ph": kind, "id": number, "name": "next to come", "cat": "collective", "bp": "e", **place}


def _names(process: int, told: Told, tracks: Mapping[int, Sequence[Slice]]) -> Iterator[Event]:
    who = told.facts.who
    rank = f"rank {who.rank}" if who.rank >= 0 else "no rank"
    yield _meta(process, 0, "process_name", name=f"{rank} ({who.host}, pid {who.pid})")
    yield _meta(process, 0, "process_sort_index", sort_index=who.rank)
    for track, slices in tracks.items():
        for lane in range(1 + max((one.lane for one in slices), default=-1)):
            name = NAMES[track] + (f" {lane + 1}" if lane else "")
            yield _meta(process, track + lane, "thread_name", name=name)
            yield _meta(process, track + lane, "thread_sort_index", sort_index=track + lane)


def _meta(process: int, thread: int, what: str, **args: object) -> Event:
    return {"ph": "M", "pid": process, "tid": thread, "name": what, "args": args}
