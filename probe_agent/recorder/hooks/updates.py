"""Detection of manual training loops: without optimizer steps, updates of the parameters end the steps.

Runs on the recorder's thread. Once parameters have changed after a backward, `Module.zero_grad` is patched, since a
step of such a loop may begin there. The cost on the training thread is in steps/updates.py.
"""

from __future__ import annotations

import sys
from time import perf_counter_ns
from typing import Any

from ..source import Recorder
from ..source import Source as BaseSource
from ..steps.updates import NUM_SURE, NUM_SURE_BESIDE_OPTIMIZER
from ..torch.patches import Patches

__all__ = ["Source"]


class Source(BaseSource):
    name = "updates"
    needs = ("torch", "torch.nn.modules.module", "torch.optim.optimizer")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._updates = recorder.updates
        self._patches = Patches()
        self._has_optimizer: bool | None = None

    def tick(self) -> None:
        updates = self._updates
        if not self.recorder.ends.takes_updates:
            self.stop()
            return
        if not updates.num_seen:
            return
        if not self._patches:
            self._patches.wrap(sys.modules["torch.nn.modules.module"].Module, "zero_grad", self._noted)
        if updates.are_steps or updates.num_seen < NUM_SURE:
            return
        if self._has_optimizer is None:
            self._has_optimizer = self.recorder.has_optimizer()
        updates.are_steps = not self._has_optimizer or updates.num_seen >= NUM_SURE_BESIDE_OPTIMIZER

    def stop(self) -> None:
        self._patches.restore()
        self._updates.forget()

    def _noted(self, original: Any) -> Any:
        updates, is_compiling = self._updates, self.recorder.device.is_compiling

        def zero_grad(module: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if updates.is_awaited and not is_compiling():
                    updates.look(perf_counter_ns())
            except Exception as error:
                if self.recorder.fail(self.name, error):
                    raise
            return original(module, *args, **kwargs)

        return zero_grad
