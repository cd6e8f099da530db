"""Watch over the job's steps: when they stop, one row of `python.stalls` and one snapshot, `stall.json`.

A stall is a time without the end of a step, longer than `stall.after` and than ten median steps. Two looks at the
training thread, a second apart, tell whether it moves, and its stack tells whether it does what takes long in a healthy
job as well. Each stall leaves one row and one snapshot, and a second row once steps go on. Work, such as an evaluation,
that turns into something else without a step is a stall of its own.

Runs on the recorder's thread: 1 µs every flush.interval while steps go on, nothing on the training thread. A C call
that holds the GIL, and SIGSTOP, hold the recorder as well: its row comes afterwards, and `unseen` is how long it could
not look.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from itertools import accumulate
from time import perf_counter_ns, time, time_ns
from typing import Any, NamedTuple

from ..job.rank import rank_and_size
from ..ring.table import NULL_FLOAT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..stall import snapshot
from ..stall.activity import ACTIVITIES, EVALUATION, GENERATION, activity_of
from ..steps.step import EVAL, GENERATE
from ..torch import loaded

__all__ = ["Source", "Stalls"]

#: Steps that last this many times the median are a stall, if they also last stall.after.
FACTOR = 10
#: Periods with steps whose mean durations, each as often as it has steps, give the median, and the fewest that do.
NUM_PERIODS, MIN_PERIODS = 50, 3
#: Longest time between two looks.
LOOK_S = 1.0
#: Part of the limit after which the next look comes, if that is sooner, and in a stall that is work, if later.
LOOK_PART = 0.1
#: A call of a module, in the stack of a server's thread.
_MODULE_FILE, _MODULE_CALL = "/torch/nn/modules/module.py", "_call_impl"

STALLED, OVER = "stalled", "over"


class Stalls(Table):
    name = "python.stalls"
    doc = (
        "Times without the end of a step, longer than stall.after and ten median steps: one row when noticed and one"
        " when over. Stacks and more of the newest one: python.stall_stacks, python.stall_snapshot."
    )
    capacity = 256
    columns = (
        Column("step", "int", "", "number of the step that does not end; -1 before the first"),
        Column("ts", "time", "UTC", "time of this row"),
        Column("began", "time", "UTC", "end of the last step, or start of the recorder; of work that stopped, its end"),
        Column("state", "text", "", f"{STALLED} while it lasts, {OVER} once a step has ended, or work has"),
        Column("duration", "float", "s", "from began to ts"),
        Column("threshold", "float", "s", "duration from which it counted: stall.after, or ten median steps"),
        Column("median", "float", "s", "median duration of the steps before; NULL before the third"),
        Column("activity", "text", "", "what the training thread did: " + ", ".join(ACTIVITIES)),
        Column("within", "text", "", "what the job's functions further out are there for, if it differs"),
        Column(
            "is_work",
            "bool",
            "",
            "a healthy job may do this for minutes: evaluation, generation, save, load, compile, import; a collective"
            " or a wait for data in an evaluation only if the thread moved",
        ),
        Column("moved", "bool", "", "the training thread's stack changed between two looks, a second apart"),
        Column("place", "text", "", "the job's innermost line: train_step (train.py:88)"),
        Column("collective", "text", "", "the oldest collective under way, as Flight Recorder has it"),
        Column("unseen", "float", "s", "longest time in which the recorder could not look: GIL held, or stopped"),
        Column("snapshot_size", "int", "bytes", "size of stall.json; 0 if it could not be written"),
    )


class _Noticed(NamedTuple):
    """A stall that has a row."""

    step: int
    began: float
    row: tuple[Any, ...]  # from `threshold` on
    is_work: bool


class Source(BaseSource):
    name = "stalls"
    tables = (Stalls,)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Stalls)
        self._num_steps, self._number = recorder.num_steps, recorder.step.number
        #: When the last step was seen to end, and the clock of this recorder's last tick, in nanoseconds.
        self._since = self._ticked = perf_counter_ns()
        self._unseen = 0
        #: The mean duration of each period's steps, and their number: a stall is a period of few steps.
        self._periods: deque[tuple[float, int]] = deque(maxlen=NUM_PERIODS)
        self._look_at = 0
        self._first_look: Any = None
        self._noticed: _Noticed | None = None

    def tick(self) -> None:
        now = perf_counter_ns()
        gap, self._ticked = now - self._ticked, now
        self._unseen = max(self._unseen, gap)
        num_steps, is_on = self.recorder.num_steps, self.recorder.settings["stall.watch"]
        if num_steps != self._num_steps or not is_on:
            if self._num_steps and num_steps > self._num_steps:
                num_new, total = num_steps - self._num_steps, (now - self._since) * 1e-9
                # The recorder could not look, and one of these steps lasted as long as a stall, even if the others
                # took twice as long as usual.
                longest = max(total / num_new, total - (num_new - 1) * 2 * (self._median or total))
                if is_on and self._noticed is None and min(longest, gap * 1e-9) > self._threshold:
                    self._notice(moved=False)
                self._periods.append((total / num_new, num_new))
            self._num_steps = num_steps
            self._begin(now)
        elif now >= self._look_at and (self._noticed or (now - self._since) * 1e-9 > self._threshold):
            self._look(now, is_only=gap * 1e-9 > self._threshold / 2)

    def awaited(self) -> dict[str, Awaited]:
        if self.recorder.has_rows(Stalls):
            return {}
        settings = self.recorder.settings
        if not settings["stall.watch"]:
            return {Stalls.name: Awaited("the stall watch is off", "probe … config stall.watch=on")}
        why = f"no step so far has lasted {settings['stall.after']:g} s (stall.after) and {FACTOR} times the median"
        return {Stalls.name: Awaited(why, "see whether the job hangs now: probe … hang")}

    @property
    def _median(self) -> float | None:
        if len(self._periods) < MIN_PERIODS:
            return None
        means = sorted(self._periods)
        ends = list(accumulate(number for _, number in means))
        return means[bisect_right(ends, ends[-1] // 2)][0]

    @property
    def _threshold(self) -> float:
        return max(float(self.recorder.settings["stall.after"]), FACTOR * (self._median or 0.0))

    def _begin(self, now: int) -> None:
        """Begin to wait for the end of a step, and end the stall if there is one."""
        noticed, self._noticed = self._noticed, None
        self._since, self._look_at, self._first_look, self._unseen = now, 0, None, 0
        self._number = self.recorder.step.number
        if noticed is not None:
            self._write(OVER, noticed, time_ns() - (perf_counter_ns() - now))

    def _look(self, now: int, is_only: bool) -> None:
        """Look at the training thread: at first twice, then only at work, until it is none any more. After a time in
        which the recorder could not look, there may be no second look: steps go on."""
        noticed = self._noticed
        if noticed is not None and not noticed.is_work:
            return
        if noticed is None and not self._is_expected():
            self._look_at = now + round(LOOK_S * 1e9)
            return
        part = LOOK_PART * self._threshold
        self._look_at = now + round((min(LOOK_S, part) if noticed is None else max(LOOK_S, part)) * 1e9)
        frames = self._training_frames()
        if noticed is not None:
            self._follow_work(now, frames)
        elif self._first_look is None and not is_only:
            self._first_look = (frames,)
        elif self._first_look is None:
            self._first_look = (frames,)
            self._notice(moved=False)
        else:
            self._notice(frames != self._first_look[0])

    def _follow_work(self, now: int, frames: list[dict[str, Any]]) -> None:
        """Let the next stall begin where work has ended, once that has lasted as long as any stall."""
        moved, self._first_look = frames != self._first_look[0], (frames,)
        if activity_of(frames, self._phase()).is_work(moved):
            self._since = now
        elif (now - self._since) * 1e-9 > self._threshold:
            self._begin(self._since)

    def _notice(self, moved: bool) -> None:
        recorder = self.recorder
        stacks = snapshot.threads(recorder)
        found = list(snapshot.sections(recorder, stacks))
        began = time() - (perf_counter_ns() - self._since) * 1e-9
        noticed = self._judge(began, stacks, moved, "", 0.0)
        size = self._save(noticed, found)  # now: what follows asks torch, which may be what hangs
        if loaded("torch.distributed.distributed_c10d") is not None:
            of_torch = snapshot.of_flight_recorder(recorder)
            noticed = self._judge(began, stacks, moved, *snapshot.oldest_collective(of_torch[0]))
            size = self._save(noticed, found + of_torch)
        self._noticed = noticed._replace(row=(*noticed.row, size))
        if noticed.is_work:
            self._since = perf_counter_ns()  # what follows the work may be a stall of its own
        self._write(STALLED, self._noticed, time_ns())

    def _judge(
        self, began: float, stacks: list[snapshot.Thread], moved: bool, collective: str, age_s: float
    ) -> _Noticed:
        trains = next((t for t in stacks if t["is_training"] or (t["is_main"] and not t["is_probe"])), None)
        in_collective = age_s > self._threshold / 2
        activity = activity_of(trains["frames"] if trains else None, self._phase(), in_collective)
        is_work = activity.is_work(moved)
        median_s = self._median
        row = (
            self._threshold,
            NULL_FLOAT if median_s is None else median_s,
            activity.name,
            activity.within or None,
            is_work,
            moved,
            activity.place or None,
            collective or None,
            self._unseen * 1e-9,
        )
        return _Noticed(self._number, began, row, is_work)

    def _save(self, noticed: _Noticed, found: list[snapshot.Section]) -> int:
        recorder = self.recorder
        names = [column.name for column in Stalls.columns[5:-1]]
        values = {name: None if value == NULL_FLOAT else value for name, value in zip(names, noticed.row)}
        said = {"step": noticed.step, "began": noticed.began, "noticed": time(), **values}
        try:
            return snapshot.write(recorder.folder, said, found, int(recorder.settings["stall.size"]) * 1024)
        except OSError as error:  # no space left
            recorder.fail(self.name, error)
            return 0

    def _write(self, state: str, noticed: _Noticed, now_ns: int) -> None:
        number = self._buffer.number
        row = [number(value) if value is None or isinstance(value, str) else value for value in noticed.row]
        began = round(noticed.began * 1e6)
        duration = now_ns * 1e-9 - noticed.began
        head = (noticed.step, now_ns // 1000, began, number(state), duration)
        self._buffer.rows.append((*head, *row))

    def _is_expected(self) -> bool:
        """Return whether a step is due: in a server only during a call, before the first step only in a job."""
        recorder = self.recorder
        if recorder.steps_are_calls:
            threads = recorder.ask("stacks", {"all": True})["threads"]
            return any(_is_call(frame) for thread in threads for frame in thread["frames"])
        if recorder.num_steps:
            return True
        seen = recorder.seen
        is_training = recorder.step.micro_batches or seen.optimizer_classes or seen.running
        return loaded("torch") is not None and bool(is_training or rank_and_size()[1] > 1)

    def _training_frames(self) -> list[dict[str, Any]]:
        threads = self.recorder.ask("stacks", {})["threads"]
        trains = next((t for t in threads if t["is_training"]), threads[0] if threads else None)
        return [] if trains is None else [{**frame, "source": None} for frame in trains["frames"]]

    def _phase(self) -> str:
        """Return the phase of the block without gradients that the training thread is in."""
        kinds = {block.kind for block in list(self.recorder.step.blocks)}
        return GENERATION if GENERATE in kinds else EVALUATION if EVAL in kinds else ""


def _is_call(frame: dict[str, Any]) -> bool:
    return str(frame["file"]).endswith(_MODULE_FILE) and str(frame["func"]).rpartition(".")[2] == _MODULE_CALL
