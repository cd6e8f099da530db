"""What happens before the first step: imports, `init_process_group`, the job's own code; in `start.json`.

The recorder's thread looks at the main thread's stack every flush.interval until the first step has ended, and counts
the time since the look before for what it sees: so much for the import of each package, so much for the rest. Of a call
of init_process_group it notes rank, world size and address, and after 2 s asks which ranks have come (job/arrivals.py).

Runs on the recorder's thread: 10 to 25 µs a look (benchmarks.samplers), up to 60 µs in a deep stack of imports; after
two minutes a look every 2 s; nothing after the first step, and nothing on the main thread. Without an import or a
process group there is no file.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from time import monotonic, time
from types import FrameType
from typing import NamedTuple

from ..guest import own_threads
from ..guest.main_thread import main_ident
from ..guest.walk import frames_of, variables
from ..job.arrivals import STEPS, WAITS, Arrivals, StoreWatch, Waiting, neighbours
from ..job.rank import meeting_place, number_in, rank_and_size
from ..ring.folder import START
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..steps.ends import Steps
from ..torch import loaded

__all__ = ["Source"]

#: After this time looks become rare.
OFTEN_S, RARELY_S = 120.0, 2.0
#: The file is written at most this often.
WRITE_S = 1.0
#: A healthy job mostly has left init_process_group by then. The store is asked at growing intervals, and at once when
#: another rank of this host has come.
FIRST_ASK_S, LONGEST_ASK_S = 2.0, 30.0
#: Interval at which the folders of the host's other targets are read.
NEIGHBOURS_S = 1.0
MAX_PHASES = 200
#: Late ranks of this host that the text names.
MAX_LATE = 4
#: An import is named as the reason for a missing step if it has lasted this long.
LONG_S = 2.0
IMPORT, OTHER = "import", "other"
_IMPORTLIB, _IMPORTS = "<frozen importlib._bootstrap>", "_find_and_load"
_C10D, _INIT = "distributed_c10d.py", "init_process_group"
#: Known since Python 3.10.
_STANDARD: frozenset[str] = getattr(sys, "stdlib_module_names", frozenset())
_LIBRARY = ("/site-packages/", "/dist-packages/", "<frozen", f"/lib/python{sys.version_info[0]}.")


class Now(NamedTuple):
    """What the main thread does."""

    phase: str
    #: The package that is being imported; for init_process_group, where the ranks meet.
    name: str = ""
    #: The package that the job's own code imports, if it is another one.
    by: str = ""


class Phase:
    """Time that went into one thing."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.seconds = 0.0


class Source(BaseSource):
    name = "start"

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._path = os.path.join(recorder.folder, START)
        self._began = self._looked = monotonic()
        self._look_at = self._write_at = 0.0
        self._phases: dict[Now, Phase] = {}
        self._now = Now(OTHER)
        #: When the main thread was first seen in what it does now, on both clocks.
        self._since, self._since_wall = self._began, time()
        self._place = ""
        self._waiting: Waiting | None = None
        self._store: StoreWatch | None = None
        self._neighbours_at, self._ask_at, self._ask_s = 0.0, 0.0, FIRST_ASK_S
        self._is_asking = False
        self._of_host, self._of_store = Arrivals(), Arrivals()
        self._is_over = False

    def tick(self) -> None:
        now = monotonic()
        if self._is_over or now < self._look_at:
            return
        self._is_over = self.recorder.num_steps > 0
        elapsed, self._looked = now - self._looked, now
        self._look_at = 0.0 if now - self._began < OFTEN_S else now + RARELY_S
        self._see(self._look(), now, elapsed)
        if self._waiting is not None and not self._is_over:
            self._find_out(self._waiting, now)
        else:
            self._hang_up()
        if self._is_worth_a_file() and (now >= self._write_at or self._is_over):
            self._write_at = now + WRITE_S
            self._write()

    def start(self) -> None:
        self.recorder.before_first_step = self._why_no_step

    def stop(self) -> None:
        self.recorder.before_first_step = lambda: None
        self._hang_up()

    def _hang_up(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def awaited(self) -> Mapping[str, Awaited]:
        why = self._why_no_step()
        return {} if why is None else {Steps.name: why}

    def _why_no_step(self) -> Awaited | None:
        lasts = monotonic() - self._since
        if self._is_over or self.recorder.num_steps or self._now.phase == OTHER or lasts < LONG_S:
            return None
        remedy = "see where each rank is: probe … backtrace --all-ranks" if self._waiting else "query it again later"
        return Awaited(f"no step yet: for {lasts:.0f} s {self._text()}", remedy)

    def _see(self, seen: Now, now: float, elapsed: float) -> None:
        if seen not in self._phases and len(self._phases) >= MAX_PHASES:
            seen = Now(seen.phase)
        phase = self._phases.setdefault(seen, Phase(time() - elapsed))
        phase.seconds += elapsed
        if (seen.phase, seen.by or seen.name) != (self._now.phase, self._now.by or self._now.name):
            self._since, self._since_wall = now - elapsed, time() - elapsed
            self._ask_at, self._ask_s = now - elapsed + FIRST_ASK_S, FIRST_ASK_S
            self._neighbours_at = self._ask_at
            self._of_host, self._of_store = Arrivals(), Arrivals()
        self._now = seen

    def _look(self) -> Now:
        """Return what the main thread does now."""
        frames = frames_of(main_ident())
        try:
            self._place = next((_place(frame) for frame in frames if not _is_library(frame)), "")
            init = next((frame for frame in frames if _is_init(frame)), None)
            if init is None:
                self._waiting = None
                return _import(frames)
            if self._waiting is None:
                self._waiting = _waiting(init)
            return Now(WAITS, self._waiting.place)
        finally:
            frames.clear()

    def _find_out(self, waiting: Waiting, now: float) -> None:
        """Find out which ranks have come. The store is asked on a thread of its own, since it may not answer."""
        if now < self._neighbours_at:
            return
        self._neighbours_at = now + NEIGHBOURS_S
        before, (self._of_host, is_first) = self._of_host.ranks, neighbours(self.recorder.folder, waiting)
        if self._of_host.ranks != before:
            self._ask_at, self._ask_s = min(self._ask_at, now), FIRST_ASK_S
        if not is_first:
            self._of_store = Arrivals()
        if now < self._ask_at or self._is_asking or not is_first:
            return
        self._ask_at = now + self._ask_s
        self._ask_s = min(2 * self._ask_s, LONGEST_ASK_S)
        self._is_asking = True
        store = self._store = self._store or StoreWatch(waiting)
        try:
            own_threads.start(lambda: self._ask(store))
        except RuntimeError:
            self._is_asking = False
            raise

    def _ask(self, store: StoreWatch) -> None:
        try:
            self._of_store = store.ask()
        except Exception as error:  # the border: this thread has no caller
            self.recorder.fail(self.name, error)
        finally:
            self._is_asking = False

    @property
    def _come(self) -> set[int]:
        own = self._waiting.rank if self._waiting is not None else None
        return {*self._of_host.ranks, *self._of_store.ranks, *([] if own is None else [own])}

    @property
    def _num_come(self) -> int:
        return max(self._of_store.num or 0, self._of_host.num or 0, len(self._come))

    @property
    def _problem(self) -> str:
        return self._of_store.problem or self._of_host.problem

    def _text(self) -> str:
        """Return what the main thread has been doing, to follow on its duration."""
        if self._waiting is None:
            return f"it has been importing {self._now.by or self._now.name}" if self._now.phase == IMPORT else ""
        waiting, come, size = self._waiting, self._come, self._waiting.world_size
        who = "it" if waiting.rank is None else f"rank {waiting.rank}"
        parts = [f"{who} has been waiting in {_INIT}" + (f" for {waiting.place}" if waiting.place else "")]
        num = self._num_come
        if size:
            missing = sorted(set(range(size)) - come)
            if num >= size:
                parts.append(f"all {size} ranks have come")
            elif len(missing) == size - num:
                parts.append(f"{num} of {size} ranks are there, without {_ranks(missing)}")
            else:
                parts.append(f"{num} of {size} ranks are there, {_ranks(sorted(come))} among them")
            parts += [f"rank {rank}: {does}" for rank, does in sorted(self._of_host.late.items())[:MAX_LATE]]
        if self._problem:
            parts.append(self._problem)
        return "; ".join(parts)

    def _does(self) -> str:
        now = self._now
        if now.phase == WAITS:
            return f"waits in {_INIT}"
        if now.phase == IMPORT:
            return f"imports {now.by or now.name}" + (f" ({now.name})" if now.by else "")
        return f"is at {self._place}" if self._place else "runs no code of its own"

    def _is_worth_a_file(self) -> bool:
        return any(now.phase != OTHER for now in self._phases)

    def _write(self) -> None:
        waiting = self._waiting
        rank, world_size = rank_and_size()
        has_group = getattr(loaded("torch.distributed.distributed_c10d"), "_world", None)
        content = {
            "pid": os.getpid(),
            "rank": rank if waiting is None else waiting.rank,
            "world_size": world_size if waiting is None else waiting.world_size,
            "place": meeting_place() if waiting is None else waiting.place,
            "has_group": getattr(has_group, "default_pg", None) is not None,
            "state": STEPS if self._is_over else self._now.phase,
            "does": self._does(),
            "text": self._text() or self._does(),
            "since": self._since_wall,
            "written": time(),
            "num_come": self._num_come if waiting else None,
            "come": sorted(self._come),
            "late": {str(rank): does for rank, does in self._of_host.late.items()},
            "problem": self._problem,
            "now": None if self._is_over else list(self._now),
            "phases": [[*now, phase.began, phase.seconds] for now, phase in self._phases.items()],
        }
        with open(self._path + ".new", "w") as file:
            json.dump(content, file)
        os.chmod(self._path + ".new", 0o600)
        os.rename(self._path + ".new", self._path)


def _import(frames: list[FrameType]) -> Now:
    """Return the import that the frames are in: the innermost package, and the one that the job's code imports."""
    imports = [at for at, frame in enumerate(frames) if _is_import(frame)]
    if not imports:
        return Now(OTHER)
    names = [_top(frame) for frame in frames[: imports[-1]] if _is_module(frame)]
    # What the standard library takes counts for the package that imports it.
    names = [name for name in names if name not in _STANDARD] or names[-1:]
    if not names:
        name = str(variables(frames[imports[-1]]).get("name", "")).partition(".")[0]
        return Now(IMPORT, name)
    return Now(IMPORT, names[0], names[-1] if names[-1] != names[0] else "")


def _is_import(frame: FrameType) -> bool:
    return frame.f_code.co_name == _IMPORTS and frame.f_code.co_filename == _IMPORTLIB


def _is_module(frame: FrameType) -> bool:
    return frame.f_code.co_name == "<module>" and frame.f_code.co_filename != "<string>"  # a namedtuple's


def _top(frame: FrameType) -> str:
    return str(dict.get(frame.f_globals, "__name__", "")).partition(".")[0]


def _is_init(frame: FrameType) -> bool:
    return frame.f_code.co_name == _INIT and frame.f_code.co_filename.endswith(_C10D)


def _is_library(frame: FrameType) -> bool:
    return any(part in frame.f_code.co_filename for part in _LIBRARY)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_name} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"


def _waiting(frame: FrameType) -> Waiting:
    """Return the arguments of a call of init_process_group; what it was not given is in the environment."""
    given = variables(frame)
    rank, world_size = given.get("rank", -1), given.get("world_size", -1)
    rank = rank if isinstance(rank, int) and rank >= 0 else number_in("RANK", -1)
    world_size = world_size if isinstance(world_size, int) and world_size > 0 else number_in("WORLD_SIZE", -1)
    method, store = given.get("init_method"), given.get("store")
    if isinstance(method, str) and "://" in method and not method.startswith("env://"):
        place = method.partition("://")[2].partition("?")[0]
    elif type(store).__name__ == "TCPStore":
        place = f"{store.host}:{store.port}"  # type: ignore[union-attr]  # a TCPStore has both
    else:
        address, port = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
        place = f"{address}:{port}" if address and port else ""
    has_agent_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return Waiting(rank if rank >= 0 else None, world_size if world_size > 0 else None, place, has_agent_store)


def _ranks(ranks: list[int]) -> str:
    """Return ranks as text: rank 3, ranks 0, 2-5."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join("-".join(map(str, part)) for part in parts)
