"""Verdict on the memory of targets: the largest part, the series that grows, and the step at which a limit is reached.

Plain functions over what `look` has found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from probe_agent.units import duration_text
from probe_agent.wire import TargetInfo
from probe_cli.text import age, mebibytes, percent

from .limits import Limit, headroom, limit_of_device, limits_of_host
from .look import CHILDREN, OWN, SHM, Device, Failed, Look
from .trend import MIN_SAMPLES, State, Trend, trend, weighed

__all__ = ["Full", "Part", "Report", "full_at", "notes_on", "sentence"]

#: Shares of torch's reserved memory and of the device from which a note is made.
FRAGMENTED, NEARLY_FULL = 0.25, 0.95
_REST_OF_HOST = "rest: activations, data, Python"
_REST_OF_DEVICE = "rest: activations"


@dataclass(frozen=True)
class Part:
    """A part of the memory in one place, in MiB."""

    place: str
    name: str
    mib: float
    #: Of all memory in use in that place.
    share: float
    note: str = ""


@dataclass(frozen=True)
class Full:
    """The limit that is reached first, if the growth goes on."""

    limit: str
    headroom: float
    in_s: float
    step: int | None
    #: The same at the bounds of the slope; the later one is None if the slope's lower bound is not above 0.
    earliest_step: int | None = None
    latest_step: int | None = None


@dataclass(frozen=True)
class Report:
    """The memory of one target."""

    info: TargetInfo
    look: Look
    gaps: tuple[str, ...] = field(default=())

    @cached_property
    def trends(self) -> Mapping[str, Trend]:
        return {
            name: weighed(trend(samples), headroom(self.limits(name))) for name, samples in self.look.series.items()
        }

    def limits(self, name: str) -> list[Limit]:
        """Return what a series comes nearer to as it grows."""
        device = next((one for one in self.look.devices if one.name == name), None)
        if device is None:
            return limits_of_host(name, self.look.now)
        return limit_of_device(name, device.total, device.used, device.reserved, device.allocated)

    @property
    def growing(self) -> dict[str, Trend]:
        """The series of the job itself that grow; /dev/shm is filled by all processes of the host."""
        return {name: found for name, found in self.trends.items() if name != SHM and found.state is State.GROWS}

    @property
    def state(self) -> State:
        """That of all series together: a growing one decides, then one that is not known."""
        states = {found.state for name, found in self.trends.items() if name != SHM}
        for state in (State.GROWS, State.UNKNOWN, State.LEVELLING, State.FLAT):
            if state in states:
                return state
        return State.UNKNOWN

    def now(self, name: str) -> float | None:
        value = (self.look.now or {}).get(name)
        return value if isinstance(value, float) else None

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Where the memory is, largest first, the device before the host."""
        found = [part for device in self.look.devices for part in self._of_device(device)]
        return (*found, *self._of_host())

    def _tensors(self, device: str, kind: str = "") -> float:
        return sum(one.mib for one in self.look.tensors if one.device == device and kind in ("", one.kind))

    def _of_device(self, device: Device) -> list[Part]:
        sizes = {one.kind: one.mib for one in self.look.tensors if one.device == device.name}
        if self.look.tensors:
            sizes[_REST_OF_DEVICE] = max(0.0, device.allocated - sum(sizes.values()))
        else:
            sizes["allocated"] = device.allocated
        at_peak = min(max(device.peak, device.allocated), device.reserved)
        sizes["free now, in use at the peak"] = at_peak - min(device.allocated, at_peak)
        sizes["reserved and never in use"] = device.reserved - at_peak
        return _ordered(device.name, sizes)

    def _of_host(self) -> list[Part]:
        sizes = {one.kind: one.mib for one in self.look.tensors if one.device == "cpu"}
        anonymous, children = self.now("anonymous"), self.now("workers_private")
        if anonymous is None:
            last = {name: found.last for name, found in self.trends.items() if found.last is not None}
            sizes = {OWN: last[OWN]} if OWN in last else {}
            if CHILDREN in last:
                sizes["child processes"] = last[CHILDREN]
            return _ordered("host", sizes)
        sizes[_REST_OF_HOST] = max(0.0, anonymous - sum(sizes.values()))
        sizes["files: libraries, mapped data"] = self.now("file") or 0.0
        sizes["shared memory"] = self.now("shmem") or 0.0
        if self.now("num_workers"):
            sizes["data-loader workers"] = (self.now("workers_rss") if children is None else children) or 0.0
        if self.now("swap"):
            sizes["swapped out"] = self.now("swap") or 0.0
        return _ordered("host", sizes)

    @property
    def later_gradients(self) -> float:
        """Gradients in MiB that do not exist now, and will when backward has ended."""
        return sum(one.full - one.mib for one in self.look.tensors)


def _ordered(place: str, sizes: Mapping[str, float]) -> list[Part]:
    total = sum(sizes.values()) or 1.0
    ordered = sorted(sizes.items(), key=lambda item: -item[1])
    return [Part(place, name, size, size / total) for name, size in ordered]


def full_at(report: Report, name: str, neighbours: Sequence[Report]) -> Full | None:
    """When the growth of a series reaches a limit; `neighbours` are the targets of the same host, itself among them,
    whose growth counts for the limits that they share."""
    own = report.trends[name]
    found = [
        _full(report, own, limit, _rate(limit, own, neighbours), own.high / own.per_second, own.low / own.per_second)
        for limit in report.limits(name)
    ]
    return min(found, key=lambda full: full.in_s, default=None)


def _rate(limit: Limit, own: Trend, neighbours: Sequence[Report]) -> float:
    """Return the MiB a second at which a limit comes nearer."""
    if not limit.is_shared:
        return own.per_second
    return sum(found.per_second for one in neighbours for key, found in one.growing.items() if key in (OWN, CHILDREN))


def _full(report: Report, own: Trend, limit: Limit, rate: float, fastest: float, slowest: float) -> Full:
    in_s = max(0.0, limit.left) / rate
    steps_a_second = own.num_steps / own.span_s if own.num_steps > 0 else None
    step = report.info.step

    def at(factor: float) -> int | None:
        if steps_a_second is None or step is None or factor <= 0:
            return None
        return step + int(in_s / factor * steps_a_second)

    return Full(limit.name, limit.left, in_s, at(1.0), at(fastest), at(slowest))


def sentence(report: Report, neighbours: Sequence[Report]) -> str:
    """One sentence: what dominates, whether it grows, and when it is full."""
    who = _who(report.info)
    if not report.parts:
        return f"the memory of {who} is not known: it has recorded none"
    place = report.parts[0].place
    largest = max((part for part in report.parts if part.place == place), key=lambda part: part.mib)
    total = sum(part.mib for part in report.parts if part.place == place)
    uses = "uses" if report.info.alive else "used"
    text = f"{who} {uses} {mebibytes(total)} of {'host memory' if place == 'host' else place}"
    if largest.share < 1:
        text += f", {percent(largest.share)} of it {_short(largest.name)}"
    return f"{text}; {_growth(report, neighbours)}"


def _who(info: TargetInfo) -> str:
    return f"rank {info.rank}" if info.rank is not None and info.world_size > 1 else f"pid {info.pid}"


def _short(name: str) -> str:
    head, _, more = name.partition(": ")
    return more if head == "rest" else head


def _growth(report: Report, neighbours: Sequence[Report]) -> str:
    growing = report.growing
    if growing:
        ends = {name: full_at(report, name, neighbours) for name in growing}
        name = min(growing, key=lambda name: end.in_s if (end := ends[name]) is not None else float("inf"))
        found, end = growing[name], ends[name]
        what = "it" if name == OWN else f"the {name}" if name == CHILDREN else name
        text = f"{what} grows by {rate(found)} ({significance(found)})"
        if end is None:
            return text + "; the limit is not known"
        when = (
            f"full at step {end.step:,}, in {duration_text(end.in_s)}"
            if end.step is not None
            else (f"full in {duration_text(end.in_s)}")
        )
        return f"{text} and is {when}: {end.limit}"
    trends = [found for name, found in report.trends.items() if name != SHM]
    rising = max((one for one in trends if one.wait_s is not None), key=lambda one: one.per_second, default=None)
    if rising is not None:
        grown, seen = mebibytes(rising.per_second * rising.span_s), duration_text(rising.span_s)
        later = f": ask again in {duration_text(rising.wait_s or 0.0)}" if report.info.alive else ""
        return f"it has grown by {grown} in {seen}, too early to tell if that goes on{later}"
    over = max(trends, key=lambda found: found.num_samples, default=None)
    if over is None or report.state is State.UNKNOWN:
        num = 0 if over is None else over.num_samples
        few = f"{num} of {MIN_SAMPLES} samples" if num < MIN_SAMPLES else f"{num} samples in too short a time"
        return f"too early to tell if it grows ({few})"
    seen = f"{over.num_steps:,} steps" if over.num_steps > 0 else (age(over.span_s) or "")
    if report.state is State.LEVELLING:
        return f"it has grown and is levelling off, over {seen}"
    return f"no significant growth over {seen}"


def rate(found: Trend) -> str:
    """`0.41 MiB a step`, or a second where there are no steps."""
    if found.per_step is None:
        return f"{mebibytes(found.per_second)} a second"
    return f"{mebibytes(found.per_step)} a step"


def significance(found: Trend) -> str:
    """`p < 0.001 over 900 steps`."""
    p = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.3f}"
    return f"{p} over " + (f"{found.num_steps:,} steps" if found.num_steps > 0 else age(found.span_s) or "")


def notes_on(report: Report) -> list[str]:
    """Remarks about a target: memory that comes later, an allocator in trouble, others on its device."""
    who = f"{_who(report.info)}: "
    notes = []
    if any(one.assumed for one in report.look.tensors):
        notes.append(f"{who}every parameter is taken to have a gradient: no step ended in which that could be read")
    if report.later_gradients >= 1:
        notes.append(f"{who}gradients take {mebibytes(report.later_gradients)} more when backward has ended")
    for device in report.look.devices:
        notes += [f"{who}{device.name} {note}" for note in _device_notes(device, report.look.allocator)]
        others = [user for user in report.look.users if user.gpu == device.gpu and user.process != report.info.pid]
        if others:
            named = ", ".join(
                f"{user.command or 'process'} {user.process}" + (f" ({mebibytes(user.mib)})" if user.mib else "")
                for user in others[:8]
            )
            notes.append(f"{who}{device.name} is also used by {named}")
    if report.look.failed is not None:
        notes.append(f"{who}{_failure(report.look.failed)}")
    if report.growing:
        of_children = CHILDREN in report.growing and OWN not in report.growing
        whom = "a worker: probe WORKER_PID" if of_children else f"probe {report.info.pid}"
        notes.append(f"{who}name the lines that leak: {whom} memory --leaks")
    return notes


def _failure(failed: Failed) -> str:
    text = (
        f"an allocation of {mebibytes(failed.requested)} on {failed.device} failed in step {failed.step}, with"
        f" {mebibytes(failed.allocated)} in tensors and {mebibytes(failed.reserved)} reserved"
        f" of {mebibytes(failed.limit)}"
    )
    if failed.file is None or failed.lineno is None or failed.of_line is None:
        return f"{text} (to have the lines next time: config memory.history=100000)"
    return f"{text}; {failed.file.rpartition('/')[2]}:{failed.lineno} held {mebibytes(failed.of_line)}"


def _device_notes(device: Device, allocator: str) -> list[str]:
    notes = []
    if device.total and device.peak / device.total > NEARLY_FULL:
        notes.append(f"is nearly full: {mebibytes(device.peak)} of {mebibytes(device.total)} at the peak")
    if device.new_retries or device.ooms:
        notes.append(f"had {device.ooms} out-of-memory errors and {device.retries} cache flushes to find memory")
    unused = device.reserved - max(device.allocated, device.peak)  # what is free between two steps is used in the next
    if device.reserved > 0 and unused / device.reserved > FRAGMENTED:
        idle = mebibytes(unused)
        hint = (
            "" if "expandable_segments:True" in allocator else " (try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)"
        )
        notes.append(f"has reserved {idle} more than were ever in use{hint}")
    return notes
