"""One look at the memory of a target: what takes it now, and how it has changed over the rows of its rings.

Runs in the CLI on its event loop, for all ranks at once. Series are thinned out by the host server; of what cannot be
asked (the target has ended, or holds its GIL) the rest is shown, with the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from probe_agent.errors import NoAnswer, QueryFailed
from probe_agent.wire import QueryRequest, QueryResult
from probe_cli.client import Client

from .trend import Sample

__all__ = ["CHILDREN", "OWN", "SHM", "Look", "Module", "Tensors", "look"]

#: A recorder that is stopped, or waits for the GIL, is not waited for longer.
RECORDER_S = 5.0
#: Names of the series of the host's memory; those of devices have the device's name. Files and shared memory are left
#: out: pages of a mapped data set count as soon as they are read, and the recorder's rings fill.
OWN, CHILDREN, SHM = "memory of the process", "memory of child processes", "/dev/shm"
_NUM_SAMPLES = 240

_HOST = (
    "SELECT epoch(ts) AS t, step, rss - rss_shared AS own, children_rss - children_shared AS children,"
    " shm_used AS shm, vm_data - own AS untouched FROM process.samples"
)
_DEVICES = "SELECT epoch(ts) AS t, step, device, allocated FROM torch.memory"
_NEWEST = (
    "SELECT device, arg_max(allocated, ts), arg_max(reserved, ts), arg_max(peak_allocated, ts), max(retries),"
    " max(ooms), min(retries) FROM torch.memory GROUP BY device ORDER BY device"
)
_NOW = "SELECT * FROM process.memory"
_TENSORS = (
    'SELECT kind, device, coalesce(memory, "full"), "full", memory IS NULL FROM torch.tensors ORDER BY kind, device'
)
_GPUS = (
    "SELECT device, arg_max(memory_used, ts), arg_max(memory_total, ts), arg_max(gpu, ts) FROM gpu.samples"
    " WHERE device IS NOT NULL GROUP BY device"
)
_USERS = "SELECT gpu, process, command, used, pid IS NOT NULL FROM gpu.processes ORDER BY gpu, used DESC"
#: The newest out-of-memory error, and the line that held most of the device then.
_FAILED = (
    'SELECT device, step, requested, allocated, reserved, "limit", line.*'
    " FROM (FROM torch.ooms ORDER BY ts DESC LIMIT 1) LEFT JOIN (SELECT file, lineno, size FROM torch.oom_blocks"
    " WHERE lineno IS NOT NULL ORDER BY ts DESC, size DESC LIMIT 1) AS line ON true"
)
_ALLOCATOR = "SELECT value FROM process.env WHERE name IN ('PYTORCH_CUDA_ALLOC_CONF', 'PYTORCH_ALLOC_CONF')"


def _modules(top: int) -> str:
    return (
        "SELECT module, class, device, own_memory, coalesce(own_gradients, 0) AS gradients FROM torch.modules"
        f" WHERE own_memory + gradients > 0 ORDER BY own_memory + gradients DESC, module LIMIT {top}"
    )


def _thinned(rows: str, columns: Sequence[str], by: str, last_s: float | None) -> str:
    """SQL for the smallest values in equal parts of the time."""
    values = ", ".join(f"min({column})" for column in columns)
    since = "" if last_s is None else f" WHERE t > (SELECT max(t) FROM s) - {last_s!r}"
    return (
        f"WITH s AS ({rows}), u AS (SELECT * FROM s{since}), e AS (SELECT min(t) AS a, max(t) AS b FROM u)"
        f" SELECT {by} AS of, max(t), max(step), {values} FROM u, e"
        f" GROUP BY of, least({_NUM_SAMPLES - 1}, floor((t - a) / greatest(b - a, 1e-6) * {_NUM_SAMPLES}))"
        " ORDER BY 1, 2"
    )


@dataclass(frozen=True)
class Tensors:
    """Tensors of one kind on one device, in MiB; `full` counts gradients that do not exist now, too. Those that could
    not be read are `assumed` to be `full`."""

    kind: str
    device: str
    mib: float
    full: float
    assumed: bool = False


@dataclass(frozen=True)
class Module:
    """What one module holds itself, in MiB."""

    module: str
    class_: str
    device: str
    mib: float
    gradients: float


@dataclass(frozen=True)
class Device:
    """torch's allocator on one device, in MiB."""

    name: str
    allocated: float
    reserved: float
    peak: float
    #: Cache flushes to find memory, so far and in the time that the ring covers.
    retries: int
    new_retries: int
    ooms: int
    #: Of the GPU, through NVML, by all processes; None without NVML.
    used: float | None = None
    total: float | None = None
    gpu: int | None = None


@dataclass(frozen=True)
class Failed:
    """An allocation on a device that failed, and the line that held most then, if lines were kept; sizes in MiB."""

    device: str
    step: int
    requested: float
    allocated: float
    reserved: float
    limit: float
    file: str | None = None
    lineno: int | None = None
    of_line: float | None = None


@dataclass(frozen=True)
class User:
    """A process that uses a GPU."""

    gpu: int
    process: int
    command: str | None
    mib: float | None
    is_target: bool


@dataclass(frozen=True)
class Look:
    """What one target showed; sizes in MiB."""

    #: The row of process.memory; None if the target has ended or the host is another system.
    now: Mapping[str, float | str | None] | None = None
    tensors: tuple[Tensors, ...] = ()
    modules: tuple[Module, ...] = ()
    devices: tuple[Device, ...] = ()
    users: tuple[User, ...] = ()
    failed: Failed | None = None
    series: Mapping[str, tuple[Sample, ...]] = field(default_factory=dict)
    #: Settings of torch's allocator, where a device is used.
    allocator: str = ""
    #: What could not be asked, and why.
    gaps: tuple[str, ...] = ()


def look(timeout_s: float, top: int, last_s: float | None) -> Callable[[Client], Awaitable[Look]]:
    """The question for one look, of which the recorder answers a part."""

    async def ask(client: Client) -> Look:
        gaps: list[str] = []

        async def rows(sql: str, within_s: float = timeout_s) -> QueryResult | None:
            try:
                return await client.send(QueryResult, "POST", "/v1/query", QueryRequest(sql, timeout_s=within_s))
            except (NoAnswer, QueryFailed) as silence:
                gaps.append(silence.message)
                return None

        host = await rows(_thinned(_HOST, ("own", "children", "shm", "untouched"), "0", last_s))
        devices = await rows(_thinned(_DEVICES, ("allocated",), "device", last_s))
        newest = await rows(_NEWEST)
        now = await rows(_NOW)
        tensors = modules = None
        if now is not None and not now.rows:
            gaps += now.notes
            now = None
        if now is not None:
            of_recorder_s = min(timeout_s, RECORDER_S)
            tensors = await rows(_TENSORS, of_recorder_s)
            modules = await rows(_modules(top), of_recorder_s) if tensors is not None else None
        in_use = newest is not None and bool(newest.rows)
        gpus = await rows(_GPUS) if in_use else None
        users = await rows(_USERS) if in_use and now is not None else None
        failed = await rows(_FAILED) if in_use else None
        allocator = await rows(_ALLOCATOR, RECORDER_S) if in_use and now is not None else None
        if tensors is not None and not tensors.rows:
            gaps += tensors.notes
        return Look(
            _record(now),
            tuple(Tensors(str(k), str(d), _float(m), _float(f), bool(a)) for k, d, m, f, a in _rows(tensors)),
            tuple(Module(str(m), str(c), str(d), _float(o), _float(g)) for m, c, d, o, g in _rows(modules)),
            _devices(_rows(newest), {str(row[0]): row for row in _rows(gpus)}),
            tuple(
                User(_int(g), _int(p), None if c is None else str(c), None if u is None else _float(u), bool(t))
                for g, p, c, u, t in _rows(users)
            ),
            next((_failed(*row) for row in _rows(failed)), None),
            _host_series(_rows(host)) | _device_series(_rows(devices)),
            " ".join(str(value) for (value,) in _rows(allocator)),
            tuple(dict.fromkeys(gaps)),
        )

    return ask


def _rows(result: QueryResult | None) -> Sequence[Sequence[object]]:
    return () if result is None else result.rows


def _record(result: QueryResult | None) -> Mapping[str, float | str | None] | None:
    """The only row by column name."""
    for row in _rows(result):
        assert result is not None
        names = [column.name for column in result.columns]
        return {
            name: value if isinstance(value, str) else None if value is None else _float(value)
            for name, value in zip(names, row, strict=True)
        }
    return None


def _failed(device: object, step: object, *numbers: object) -> Failed:
    *sizes, file, lineno, of_line = numbers
    requested, allocated, reserved, limit = map(_float, sizes)
    line = (None, None, None) if lineno is None else (str(file), _int(lineno), _float(of_line))
    return Failed(str(device), _int(step), requested, allocated, reserved, limit, *line)


def _devices(rows: Sequence[Sequence[object]], gpus: Mapping[str, Sequence[object]]) -> tuple[Device, ...]:
    found = []
    for name, allocated, reserved, peak, retries, ooms, first_retries in rows:
        _, used, total, gpu = gpus.get(str(name), (None, None, None, None))
        found.append(
            Device(
                str(name),
                _float(allocated),
                _float(reserved),
                _float(peak),
                _int(retries),
                _int(retries) - _int(first_retries),
                _int(ooms),
                None if used is None else _float(used),
                None if total is None else _float(total),
                None if gpu is None else _int(gpu),
            )
        )
    return tuple(found)


def _host_series(rows: Sequence[Sequence[object]]) -> dict[str, tuple[Sample, ...]]:
    found: dict[str, list[Sample]] = {}
    for _, at, step, *values, untouched in rows:
        for name, value in zip((OWN, CHILDREN, SHM), values, strict=True):
            if value is not None:
                rest = None if untouched is None or name != OWN else _float(untouched)
                found.setdefault(name, []).append(Sample(_float(at), _step(step), _float(value), rest))
    return {name: tuple(samples) for name, samples in found.items() if any(one.mib for one in samples)}


def _device_series(rows: Sequence[Sequence[object]]) -> dict[str, tuple[Sample, ...]]:
    found: dict[str, list[Sample]] = {}
    for device, at, step, value in rows:
        if value is not None:
            found.setdefault(str(device), []).append(Sample(_float(at), _step(step), _float(value)))
    return {name: tuple(samples) for name, samples in found.items()}


def _step(value: object) -> float | None:
    return None if value is None or _float(value) < 0 else _float(value)


def _int(value: object) -> int:
    return int(value) if isinstance(value, int | float | str) else -1


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float | str) else float("nan")
