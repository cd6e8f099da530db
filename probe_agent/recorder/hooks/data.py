"""How long each step waited for its next batch, and how large that was: `data_wait`, `batch_size` of `python.steps`.

Runs on the training thread: two clock reads a batch. `__next__` is looked up on the class, so iterators that
exist already are seen too. The newest of them is noted by a weak reference, for `torch.dataloaders`: the loader of
`for batch in DataLoader(…)` has no name, and is gone when its loop begins.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from collections.abc import Mapping
from time import perf_counter_ns
from typing import Any
from weakref import ref

from ..source import Recorder
from ..source import Source as BaseSource
from ..stand_ins import StandIns

__all__ = ["Source"]


class Source(BaseSource):
    name = "data_wait"
    needs = ("torch", "torch.utils.data.dataloader")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._stand_ins = StandIns()

    def start(self) -> None:
        owner = sys.modules["torch.utils.data.dataloader"]._BaseDataLoaderIter
        self._stand_ins.wrap(owner, "__next__", self._timed)

    def stop(self) -> None:
        self._stand_ins.take_back()

    def _look(self, now: int) -> None:
        """The next batch is where a step of a loop without optimizer may begin."""
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
                    step.data_wait += perf_counter_ns() - began
                    try:
                        step.batch_size += _size(batch, tensor)
                    except Exception as error:  # a batch is the job's own, and so is what it does when it is looked at
                        if recorder.fail(self.name, error):
                            raise

        return timed_next


def _size(batch: Any, tensor: type) -> int:
    """Length of the first tensor of a batch; 0 when it has none where batches have them."""
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
