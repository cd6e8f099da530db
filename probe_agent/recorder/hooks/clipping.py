"""Norm of the gradients that the job itself takes when it clips them, and its limit: `grad_norm` and `clip_norm` of
`python.steps`.

`clip_grad_norm_` looks its helper for the norm up in its module, so one patch sees it however the job has imported it
(torch 2.6 and later). Runs on the training thread: 4 µs on a CPU in steps whose loss is read (benchmarks.hooks), the
call of a function in the others; on a GPU a copy that nothing waits for. See docs/decisions/0022.

Dynamo sees through the patches: what it compiles is as without them. A job that had compiled its clipping before the
recorder came would have to compile it again, so there nothing is patched. One that compiles it under the recorder does
so once more after a detach.
"""

from __future__ import annotations

import sys
from _thread import get_ident
from typing import Any

from ..source import Recorder
from ..source import Source as BaseSource
from ..torch import loaded
from ..torch.patches import Patches

__all__ = ["Source"]

_MODULE, _HELPER, _CLIPPER = "torch.nn.utils.clip_grad", "_get_total_norm", "_clip_grads_with_norm_"


class Source(BaseSource):
    name = "clipping"
    needs = ("torch", _MODULE)

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._patches = Patches()

    def start(self) -> None:
        if _is_compiled():
            return
        if hasattr(sys.modules[_MODULE], _HELPER):
            self._patches.wrap(sys.modules[_MODULE], _HELPER, self._noted)
        if hasattr(sys.modules[_MODULE], _CLIPPER):
            self._patches.wrap(sys.modules[_MODULE], _CLIPPER, self._limited)

    def stop(self) -> None:
        self._patches.restore()

    def _noted(self, original: Any) -> Any:
        step, device = self.recorder.step, self.recorder.device
        is_compiling = device.is_compiling

        def get_total_norm(tensors: Any, norm_type: Any = 2.0, *more: Any, **options: Any) -> Any:
            norm = original(tensors, norm_type, *more, **options)
            if is_compiling() or step.losses is None or step.thread != get_ident():
                return norm
            try:
                if norm_type == 2.0:
                    step.grad_norm = device.number(norm)
            except Exception as error:
                if self.recorder.fail(self.name, error):
                    raise
            return norm

        return get_total_norm

    def _limited(self, original: Any) -> Any:
        step, is_compiling = self.recorder.step, self.recorder.device.is_compiling

        def clip_grads_with_norm_(parameters: Any, max_norm: Any, *more: Any, **options: Any) -> Any:
            if is_compiling() or step.losses is None or step.thread != get_ident():
                return original(parameters, max_norm, *more, **options)
            if max_norm.__class__ in (int, float):
                step.clip_norm = float(max_norm)
            return original(parameters, max_norm, *more, **options)

        return clip_grads_with_norm_


def _is_compiled() -> bool:
    """Return whether Dynamo has compiled code of the job that clips."""
    codes = getattr(loaded("torch._dynamo.convert_frame"), "input_codes", None)
    found = [code() for code in list(getattr(codes, "seen", ()))]
    return any(code is not None and "clip_grad_norm_" in code.co_names for code in found)
