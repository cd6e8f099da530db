"""Wait for each batch and its size: `data_wait` and `batch_size` of `python.steps`.

The start of an iterator is part of the wait: a loader that starts its workers anew waits until they read what they are
given. Python looks `__next__` up on the class, so the patch covers existing iterators too. The newest iterator is noted
by a weak reference for `torch.dataloaders`: the loader of `for batch in DataLoader(…)` has no name and no other one.

A batch belongs to an evaluation if it is fetched in a block without gradients (hooks/phases.py), or if modules were
called without gradients, and no backward, until the same iterator is asked for the next one; the time between counts as
evaluation. An evaluation that takes a single batch cannot be recognised this way.

Runs on the training thread: two clock reads per batch, and two per iterator.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter_ns
from typing import Any
from weakref import ref

from ..names.candidates import attributes
from ..source import Recorder
from ..source import Source as BaseSource
from ..steps.phase_spans import DATA, EVALUATION, GENERATION
from ..steps.step import BATCH, Step
from ..torch.patches import Patches
from ..torch.seen import Passes

__all__ = ["Source"]


#: Batches of a step that may still turn out to belong to an evaluation.
MAX_BATCHES = 64


class _Batch:
    """A batch of this step that was counted as a training batch."""

    __slots__ = (
        "came",
        "evaluation",
        "generation",
        "is_used",
        "iterator",
        "micro_batches",
        "num_calls",
        "num_samples",
        "wait",
    )

    def __init__(self, iterator: Any, step: Step, came: int, wait: int, num_samples: int) -> None:
        self.iterator = id(iterator)
        self.came = came
        self.wait = wait
        self.num_samples = num_samples
        #: It was the newest batch when modules were called without gradients.
        self.is_used = False
        self.micro_batches = step.micro_batches
        self.num_calls = step.num_without_grad
        self.evaluation, self.generation = step.evaluation, step.generation


class Source(BaseSource):
    name = "data_wait"
    needs = ("torch", "torch.utils.data.dataloader")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._patches = Patches()
        self._step = recorder.step
        #: Newest batches of this step, and whether one of them was used without gradients.
        self._batches: deque[_Batch] = deque(maxlen=MAX_BATCHES)
        self._is_used = False
        #: Id of the iterator that was begun last, and the passes over its loader.
        self._pass: tuple[int, Passes | None] = (0, None)
        #: Id of the newest exhausted iterator.
        self._exhausted = 0
        #: Id of the iterator of the newest evaluation batch.
        self._evaluating = 0

    def start(self) -> None:
        module = sys.modules["torch.utils.data.dataloader"]
        self._patches.wrap(module._BaseDataLoaderIter, "__next__", self._timed)
        self._patches.wrap(module.DataLoader, "__iter__", self._timed_start)
        self._step.ending.append(self._end_step)

    def stop(self) -> None:
        self._patches.restore()
        if self._end_step in self._step.ending:
            self._step.ending.remove(self._end_step)
        self._batches.clear()

    def _look(self, now: int) -> None:
        """Check for an update: in a loop without an optimizer a step may begin with the next batch."""
        try:
            self.recorder.updates.look(now)
        except Exception as error:
            if self.recorder.fail("updates", error):
                raise

    def _timed(self, original: Any) -> Any:
        recorder, step, tensor = self.recorder, self.recorder.step, sys.modules["torch"].Tensor

        def timed_next(iterator: Any) -> Any:
            began = perf_counter_ns()
            if recorder.updates.is_awaited:
                self._look(began)
            batch = None
            try:
                batch = original(iterator)
                if recorder.batches() is not iterator:
                    recorder.batches = ref(iterator)
                return batch
            finally:
                if step.thread == get_ident():
                    ended = perf_counter_ns()
                    step.data_wait += ended - began
                    step.spans.spans.append((began, ended, DATA))
                    try:
                        if step.watcher is not None:
                            step.watcher.batch(batch)
                        num_samples = _size(batch, tensor)
                        step.batch_size += num_samples
                        if step.is_training:
                            self._note(iterator, began, ended, num_samples, batch is None)
                        if not step.blocks:
                            step.may_begin_forward(BATCH, ended)
                    except Exception as error:  # reading a batch may run the job's own code
                        if recorder.fail(self.name, error):
                            raise

        return timed_next

    def _timed_start(self, original: Any) -> Any:
        recorder, step = self.recorder, self.recorder.step

        def timed_iter(loader: Any) -> Any:
            began = perf_counter_ns()
            kept = attributes(loader).get("_iterator")
            iterator = original(loader)
            if step.thread == get_ident():
                ended = perf_counter_ns()
                step.data_wait += ended - began
                step.spans.spans.append((began, ended, DATA))
                try:
                    if iterator is not kept:
                        step.workers_started += len(attributes(iterator).get("_workers", ()))
                    if step.is_training:
                        passes = recorder.seen.passes.of(loader)
                        passes.begun += 1
                        self._pass = id(iterator), passes
                        self._note(iterator, began, ended, 0, False)
                except Exception as error:
                    if recorder.fail(self.name, error):
                        raise
            return iterator

        return timed_iter

    def _note(self, iterator: Any, began: int, ended: int, num_samples: int, is_over: bool) -> None:
        """Note that the training thread has asked for an iterator, or for a batch; an exhausted one returned none."""
        step, wait = self._step, ended - began
        of, passes = self._pass
        if passes is not None and of == id(iterator):
            passes.batches += num_samples > 0
            passes.whole += is_over
        block = next((block for block in reversed(step.blocks) if block.is_off), None)
        if block is not None:
            block.wait += wait
            block.num_samples += num_samples
            return
        self._see_use()
        if self._is_used:
            self._settle(iterator, began)
        if is_over:
            self._exhausted = id(iterator)
        if is_over and self._evaluating == id(iterator):
            step.data_wait -= wait
            step.evaluation += wait
            step.spans.spans.append((began, ended, EVALUATION))
        else:
            self._batches.append(_Batch(iterator, step, ended, wait, num_samples))

    def _see_use(self) -> None:
        if self._batches and self._batches[-1].num_calls != self._step.num_without_grad:
            self._batches[-1].is_used = self._is_used = True

    def _settle(self, iterator: object, now: int) -> None:
        """Count batches as evaluation, now that the iterator is asked for more: those of it, or of an exhausted
        iterator, that were used without gradients and without a backward since."""
        step = self._step
        own = [
            batch
            for batch in self._batches
            if batch.iterator in (id(iterator), self._exhausted) and batch.micro_batches == step.micro_batches
        ]
        if any(batch.is_used for batch in own):
            newest = self._batches[-1]
            self._evaluating = own[-1].iterator
            if newest is own[-1] and newest.iterator == id(iterator):
                # Everything that was done with this batch.
                seen = step.evaluation - newest.evaluation + step.generation - newest.generation
                self._add(newest, now - newest.came - seen, newest.came, now)
            self._take(own)
            self._is_used = any(batch.is_used for batch in self._batches)

    def _take(self, batches: Sequence[_Batch]) -> None:
        for batch in batches:
            self._step.data_wait -= batch.wait
            self._step.batch_size -= batch.num_samples
            self._add(batch, batch.wait, batch.came - batch.wait, batch.came)
            self._batches.remove(batch)

    def _add(self, batch: _Batch, time: int, began: int, ended: int) -> None:
        step = self._step
        if step.generation > batch.generation:
            step.generation += time
            step.spans.spans.append((began, ended, GENERATION))
        else:
            step.evaluation += time
            step.spans.spans.append((began, ended, EVALUATION))

    def _end_step(self) -> None:
        """Count the newest batches of an evaluation that was left early as evaluation, the others as training."""
        try:
            if self._batches:
                self._see_use()
                own = [batch for batch in self._batches if batch.iterator == self._evaluating]
                if any(batch.is_used for batch in own):
                    self._take(own)
                elif own:
                    self._evaluating = 0  # another one by now
                self._batches.clear()
                self._is_used = False
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise


def _size(batch: Any, tensor: type) -> int:
    """Return the length of the first tensor of a batch; 0 if there is none in the usual places."""
    for _ in range(3):
        if isinstance(batch, tensor):
            return int(batch.size(0)) if batch.dim() else 0  # type: ignore[attr-defined]
        if isinstance(batch, (tuple, list)) and batch:
            batch = batch[0]
        elif isinstance(batch, Mapping) and batch:
            batch = next(iter(batch.values()))
        else:
            return 0
    return 0
