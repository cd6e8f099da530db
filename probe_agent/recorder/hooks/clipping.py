"""Norm of the gradients that the job itself takes when it clips them: `grad_norm` of `python.steps`.

`clip_grad_norm_` looks its helper for the norm up in its module, so one patch sees it however the job has imported it
(torch 2.6 and later). Runs on the training thread: 4 µs on a CPU in steps whose loss is read (benchmarks.hooks), the
call of a function in the others; on a GPU a copy that nothing waits for. See docs/decisions/0022.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from typing import Any

from ..source import Recorder
from ..source import Source as BaseSource
from ..torch.patches import Patches

__all__ = ["Source"]

_MODULE, _HELPER = "torch.nn.utils.clip_grad", "_get_total_norm"


class Source(BaseSource):
    name = "clipping"
    needs = ("torch", _MODULE)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._patches = Patches()

    def start(self) -> None:
        if hasattr(sys.modules[_MODULE], _HELPER):
            self._patches.wrap(sys.modules[_MODULE], _HELPER, self._noted)

    def stop(self) -> None:
        self._patches.restore()

    def _noted(self, original: Any) -> Any:
        step, device = self.recorder.step, self.recorder.device

        def get_total_norm(tensors: Any, norm_type: Any = 2.0, *more: Any, **options: Any) -> Any:
            norm = original(tensors, norm_type, *more, **options)
            if step.losses is not None and not device.is_compiling() and step.thread == get_ident():
                try:
                    if norm_type == 2.0:
                        step.grad_norm = device.number(norm)
                except Exception as error:
                    if self.recorder.fail(self.name, error):
                        raise
            return norm

        return get_total_norm
