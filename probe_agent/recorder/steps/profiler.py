"""torch's profiler over an exact number of steps of the training thread.

It is started and stopped on that thread only. With torch 2.13, stopping it on another thread while operators ran
crashed the process (1 of 20 times), and so did leaving it on at exit or using it while the job's own was warming up.
So the job's own profiler, a fork and the exit end it first. The training thread pays the cost of torch's profiler,
and 20 to 200 ms to stop it; on a GPU it waits for the device then, as torch's profiler always does.
"""

from __future__ import annotations

import gc
import os
import sys
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from ..guest import at_exit
from ..torch.patches import Patches
from .queue import StepQueue
from .step import Step

__all__ = ["StepsProfile"]

_LEVEL = "KINETO_LOG_LEVEL"


class StepsProfile:
    """An entry of the step queue that starts the profiler on its first run and stops it `num_steps` steps later."""

    def __init__(
        self, queue: StepQueue, step: Step, num_steps: int, shapes: bool, memory: bool, fail: Callable[..., bool]
    ) -> None:
        self._queue = queue
        self._step = step
        self._num_steps = num_steps
        self._options = {"record_shapes": shapes, "profile_memory": memory}
        self._fail = fail
        self._ident = 0
        self._patches = Patches()
        self._done = allocate_lock()
        self._done.acquire()
        #: torch's profiler, also after it has stopped.
        self.profiler: Any = None
        self.is_running = False
        #: The client has left: it stops when this step ends.
        self.cancelled = False
        self.first_step = 0
        self.num_seen = 0
        #: Why there are fewer steps than requested, or none.
        self.problem = ""
        #: Time that the training thread was blocked to start and stop it.
        self.paused_s = 0.0

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; return True once."""
        return self._done.acquire(timeout=timeout_s)

    def run(self) -> None:
        """Start, continue or stop; called between two steps."""
        began = perf_counter_ns()
        try:
            if self.is_running:
                self.num_seen += 1
                if self.cancelled or self.num_seen == self._num_steps:
                    self._stop()
            else:
                self._start()
        except Exception as error:
            self.problem = f"torch's profiler failed: {type(error).__name__}: {error}"
            self._take_off()
            if self._fail("profile", error):
                raise
        finally:
            self.paused_s += (perf_counter_ns() - began) * 1e-9
            if self.is_running:
                self._queue.submit(self)
            else:
                self._over()

    def _start(self) -> None:
        torch: Any = sys.modules["torch"]
        module = sys.modules["torch.profiler"]
        if _is_used(torch, module):
            self.problem = "the job's own torch profiler is on, or warming up"
            return
        activities = [module.ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(module.ProfilerActivity.CUDA)
        self.profiler = module._KinetoProfile(activities=activities, **self._options)
        # On first use it reads this variable, and otherwise logs its start to the job's stderr.
        ours = os.environ.setdefault(_LEVEL, "99") == "99"
        try:
            self.profiler.start()
        finally:
            if ours:
                del os.environ[_LEVEL]
        self._ident = get_ident()
        self.first_step = self._step.number
        self.is_running = True
        profiler = sys.modules["torch.autograd.profiler"]
        self._step_aside_for(profiler, "_prepare_profiler", "the job has started its own torch profiler")
        self._step_aside_for(profiler, "_enable_profiler", "the job has started its own torch profiler")
        job_os = sys.modules["os"]  # ours is a copy (importing.py)
        self._step_aside_for(job_os, "fork", "the training thread has forked a process, a DataLoader's worker perhaps")
        at_exit.tell(self._at_end)

    def _stop(self) -> None:
        self._take_off()
        self.profiler.stop()

    def _take_off(self) -> None:
        self.is_running = False
        at_exit.untell(self._at_end)
        self._patches.restore()

    def _over(self) -> None:
        if self._done.locked():
            self._done.release()

    def _step_aside_for(self, owner: Any, name: str, why: str) -> None:
        def make(original: Any) -> Any:
            def ours(*args: Any, **kwargs: Any) -> Any:
                self._cut_short(why)
                return original(*args, **kwargs)

            return ours

        self._patches.wrap(owner, name, make)

    def _at_end(self) -> None:
        self._cut_short("the process has ended")

    def _cut_short(self, why: str) -> None:
        """Stop in the middle of a step, if the event is on the profiled thread."""
        if not self.is_running or get_ident() != self._ident:
            return
        try:
            self._queue.withdraw(self)
            self.problem = why
            self._stop()
        except Exception as error:
            if self._fail("profile", error):
                raise
        finally:
            self._over()


def _is_used(torch: Any, module: Any) -> bool:
    """Return whether the job profiles or is about to: warming up shows only in the profiler object's own state.

    Searching all objects takes the thread 20 to 70 ms, once per profile.
    """
    if sys.modules["torch.autograd.profiler"]._is_profiler_enabled or torch._C._autograd._profiler_enabled():
        return True
    return any(_is_warming_up(one) for one in gc.get_objects() if issubclass(type(one), module._KinetoProfile))


def _is_warming_up(profile: Any) -> bool:
    inner = getattr(profile, "profiler", None)
    if inner is None or not inner.entered:
        return False
    action = getattr(profile, "current_action", None)
    return inner.kineto_results is None or (inner.acc_events and getattr(action, "name", "") == "WARMUP")
