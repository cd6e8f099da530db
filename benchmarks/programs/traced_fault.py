"""A program of tests/faults with TraceML's step boundaries around its steps: `traced_fault.py OUT SECONDS NAME`.

TraceML wants `with trace_step(model):` around the work from `zero_grad` through `optimizer.step()`; the programs are
given it from outside: a step begins with `zero_grad` or with the call of a module, whichever comes first, and ends with
the optimizer's step. Batches that come from no DataLoader are wrapped, as its documentation says. After SECONDS of
steps each rank asks for the summary as a user's script would at its end, the first one writes it into OUT, and the
program ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import traceml_ai as traceml
from faults import gallery
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader


class Boundaries:
    """The boundary of the running step, if one has begun."""

    def __init__(self, out: Path, seconds: float) -> None:
        self._out, self._seconds = out, seconds
        self._open: AbstractContextManager[None] | None = None
        self._model: torch.nn.Module | None = None
        self._since = 0.0

    def begins(self, *_: object) -> None:
        if self._open is None and self._model is not None:
            self._open = traceml.trace_step(self._model)
            self._open.__enter__()

    def is_called(self, module: torch.nn.Module, inputs: object) -> None:
        if torch.is_grad_enabled():
            self._model = self._model or module
            self.begins()

    def ends(self, *_: object) -> None:
        if self._open is None:
            return
        step, self._open = self._open, None
        step.__exit__(None, None, None)
        self._since = self._since or time.monotonic()
        if time.monotonic() - self._since > self._seconds:
            told = traceml.final_summary(timeout_sec=120.0)
            if told is not None:
                self._out.write_text(json.dumps(told))
            os._exit(0)


def main(out: str, seconds: str, name: str) -> None:
    traceml.init(mode="auto")
    boundaries = Boundaries(Path(out), float(seconds))
    clears: Any = torch.optim.Optimizer.zero_grad

    def zero_grad(*args: Any, **kwargs: Any) -> Any:
        boundaries.begins()
        return clears(*args, **kwargs)

    torch.optim.Optimizer.zero_grad = zero_grad  # type: ignore[method-assign]
    register_module_forward_pre_hook(boundaries.is_called)
    register_optimizer_step_post_hook(boundaries.ends)
    trains = gallery.train

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: Iterable[Any], **more: Any) -> None:
        if not isinstance(batches, DataLoader):
            batches = traceml.wrap_dataloader_fetch(batches)
        trains(model, optimizer, batches, **more)

    gallery.train = train
    importlib.import_module("faults.__main__")  # all programs, which take `train` from the gallery
    gallery.FAULTS[name].program(False)


if __name__ == "__main__":
    main(*sys.argv[1:])
