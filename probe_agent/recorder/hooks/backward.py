"""Duration of backward and the loss it starts from: `backward` and `loss` of `python.steps`.

The function through which Python runs torch's engine is patched: `torch.autograd.backward` and `torch.autograd.grad`
call it, however the job calls them. Runs on the training thread: two clock reads per backward, and on a CPU one
`item()`. It uses no backward hooks of torch's modules, which cost 18 µs per call and forbid in-place changes of
outputs.
"""

from __future__ import annotations

import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any
from weakref import ref

from ..source import Recorder
from ..source import Source as BaseSource
from ..steps.backward_spans import RUN_ENDED
from ..steps.losses import Losses, is_part
from ..steps.phase_spans import BACKWARD
from ..torch.patches import Patches

__all__ = ["Source"]

#: Reading a loss costs about 4 µs, so not every step shorter than this has one.
LOSS_INTERVAL_NS = 2_000_000


class Source(BaseSource):
    name = "backward"
    needs = ("torch", "torch.autograd", "torch.amp.grad_scaler")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._patches = Patches()
        self._loss_read_at = self._num_read = 0
        self._scaled: Any = None  # the loss before GradScaler multiplied it

    def start(self) -> None:
        engine = sys.modules["torch.autograd"]._engine_run_backward
        timed = functools.update_wrapper(self._timed(engine), engine)
        # Code that restores torch's own for a while, such as its tracer, takes it from the second module.
        for name in ("torch.autograd", "torch.autograd.graph"):
            self._patches.put(sys.modules[name], "_engine_run_backward", timed)
        self._patches.wrap(sys.modules["torch.amp.grad_scaler"].GradScaler, "scale", self._noted_scale)

    def stop(self) -> None:
        self._patches.restore()
        self._scaled = None

    def _timed(self, original: Any) -> Any:
        step, device = self.recorder.step, self.recorder.device
        updates, ends, evaluations = self.recorder.updates, self.recorder.ends, self.recorder.evaluations

        def engine_run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if device.is_compiling() or step.in_backward:  # a recomputing checkpoint calls it inside itself
                return original(outputs, *args, **kwargs)
            is_backward = kwargs.get("accumulate_grad", False)  # False for torch.autograd.grad
            if ends.takes_updates:  # a manual loop may use either
                self._guarded("updates", updates.before_backward, perf_counter_ns(), outputs)
            if step.thread != get_ident():
                if step.thread is None:
                    step.micro_batches += is_backward  # no step has ended yet; the first end of one needs the count
                try:
                    return original(outputs, *args, **kwargs)
                finally:
                    self._guarded("updates", updates.after_backward)
            if step.watcher is not None:
                step.watcher.loss(self._unscaled(outputs))
            if evaluations.unsure is not None:
                self._guarded("phases", evaluations.before_backward)
            if is_backward:
                if step.graph_readers:
                    self._read_graph(outputs)
                step.plain_grads = 0
            elif len(args) > 2 and args[2] is False:  # create_graph
                step.plain_grads += 1
            step.in_backward = True
            step.micro_batches += is_backward
            began = perf_counter_ns()
            step.end_forward(began)
            try:
                return original(outputs, *args, **kwargs)
            finally:
                step.backward_ended = ended = perf_counter_ns()
                step.backward = (step.backward or 0) + ended - began
                step.spans.spans.append((began, ended, BACKWARD))
                step.in_backward = False
                step.begin_forward(ended)
                if step.sampled:
                    step.module_events.append((ended, RUN_ENDED))
                if ends.takes_updates:
                    self._guarded("updates", updates.after_backward)
                if is_backward:
                    if step.micro_batches == 1:
                        self._begin_losses(ended)
                    if step.losses is not None:
                        self._note_loss(outputs, step.losses)
                    self._scaled = None

        return engine_run_backward

    def _guarded(self, source: str, call: Callable[..., None], *args: object) -> None:
        """Call into another source, so that its failures are not counted as this one's."""
        try:
            call(*args)
        except Exception as error:
            if self.recorder.fail(source, error):
                raise

    def _noted_scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            try:
                if self.recorder.device.is_plain(outputs):
                    self._scaled = (ref(scaled), outputs.detach(), self._is_part(outputs))
            except Exception as error:
                if self.recorder.fail(self.name, error):
                    raise
            return scaled

        return scale

    def _is_part(self, loss: Any) -> bool:
        device = self.recorder.device
        return device.is_plain(loss) and not device.is_watched() and is_part(loss)

    def _unscaled(self, outputs: Any) -> Any:
        """Return the loss before GradScaler multiplied it, if it did."""
        scaled = self._scaled
        return scaled[1] if scaled is not None and len(outputs) == 1 and scaled[0]() is outputs[0] else outputs

    def _begin_losses(self, now: int) -> None:
        """Decide whether the losses of this step are read: all or none."""
        step = self.recorder.step
        interval = LOSS_INTERVAL_NS * max(1, self._num_read)
        if step.sampled if self.recorder.device.has_gpu else now - self._loss_read_at > interval:
            step.losses = Losses()
            self._loss_read_at, self._num_read = now, 0

    def _read_graph(self, outputs: Any) -> None:
        try:
            loss = outputs[0] if len(outputs) == 1 else None
            if self.recorder.device.is_plain(loss) and not self.recorder.device.is_watched():
                for reader in list(self.recorder.step.graph_readers):
                    reader.note(loss, self.recorder.step.plain_grads)
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise

    def _note_loss(self, outputs: Any, losses: Losses) -> None:
        """Note the loss, the tensor of one element that backward was called on."""
        self._num_read += 1
        try:
            loss = outputs[0] if len(outputs) == 1 else None
            if self._scaled is not None and self._scaled[0]() is loss:
                _, loss, part = self._scaled
            else:
                part = self._is_part(loss)
            losses.add(self.recorder.device.number(loss), is_part=part)
        except Exception as error:
            if self.recorder.fail(self.name, error):
                raise
