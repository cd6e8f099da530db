"""Step number of the job itself: `step.from`, or the count of a Hugging Face or Lightning Trainer.

Runs on the training thread at the end of a step. The trainer is searched for once, when counting begins (a walk over
the frames, 50 µs); its count is read in the first steps and then in one step in 16. An attribute is read from its
object, held by a weak reference; a variable is looked up as by eval, 20 to 50 µs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import ref

from ..config import Settings
from ..names import frames
from ..names.lookup import Lookup
from ..ring.table import NULL_FLOAT
from ..torch.device import Device

__all__ = ["JobStep"]

SETTING = "step.from"
#: The job's number is read on one step in this many, once it is known to increase.
READ_EVERY = 16
#: Failed reads, or reads of an unchanged number, before it is given up.
MAX_FAILURES = 3
#: Modules whose `Trainer` counts optimizer steps, and the path of the count.
TRAINERS = {
    "transformers.trainer": ("state", "global_step"),
    "lightning.pytorch.trainer.trainer": ("global_step",),
    "pytorch_lightning.trainer.trainer": ("global_step",),
}
_PART = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d+)\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")


class JobStep:
    """The job's step number, if it has one. Raises only what the job's signal handlers raise."""

    def __init__(
        self,
        settings: Settings,
        device: Device,
        thread: Callable[[], int | None],
        fail: Callable[[str, BaseException], bool],
    ) -> None:
        self._settings = settings
        self._device = device
        self._thread = thread
        self._fail = fail
        self._text = ""
        #: Where it is read, and the reason for that, or why it cannot be read.
        self.text = self.why = ""
        self._parts: list[str | int] = []
        #: Object that the parts after the first are read from, once it is found.
        self._root: Callable[[], object] | None = None
        self._previous = self._num_reads = self._num_failures = self._until_read = 0
        #: Increase per step.
        self.stride = 1

    @property
    def is_known(self) -> bool:
        """Whether the job has a number."""
        return bool(self._parts)

    def begin(self) -> None:
        """Start to count steps: find the job's own number."""
        self._previous = self._num_reads = self._num_failures = self._until_read = 0
        self.stride = 1
        self._text, self._root = str(self._settings[SETTING]), None
        self._parts = parts_of(self._text)
        self.text, self.why = self._text, "set by hand" if self._text else ""
        if not self._text:
            try:
                self._find_trainer()
            except Exception as error:
                if self._fail(SETTING, error):
                    raise

    def read(self) -> int | None:
        """Return the job's number of the step that ends now, None if it is not read in this step."""
        if self._settings[SETTING] != self._text:
            self.begin()
        self._until_read -= 1
        if self._until_read > 0 or not self._parts:
            return None
        try:
            return self._read()
        except Exception as error:
            self._num_failures += 1
            self.why = str(error)
            if self._num_failures == MAX_FAILURES:
                self._parts = []  # until the setting changes
            if self._fail(SETTING, error):
                raise
            return None

    def _read(self) -> int:
        number, previous = self._whole(self._value()), self._previous
        self._previous = number
        if self._num_reads and number <= previous:
            raise ValueError(f"{self.text} does not count these steps: it was {previous}, and {number} in a later one")
        if self._num_reads == 1:
            self.stride = number - previous
        self._num_reads += 1
        self._until_read = READ_EVERY if self._num_reads > 1 else 1
        return number

    def _value(self) -> Any:
        value: Any = self._root() if self._root is not None else None
        if value is None:
            value = self._look_up(str(self._parts[0]))
        for part in self._parts[1:]:
            try:
                value = value[part] if isinstance(part, int) or isinstance(value, dict) else getattr(value, part)
            except (AttributeError, LookupError) as error:
                raise ValueError(f"{self.text} cannot be read: {type(error).__name__}: {error}") from error
        return value

    def _look_up(self, name: str) -> Any:
        if self._root is not None:
            raise LookupError(f"{self.text}: the object that counted the steps is gone")
        lookup = Lookup(self._thread, JobStep.read.__code__, set())
        try:
            value = lookup.find(name)
        except KeyError:
            raise LookupError(f"{SETTING}={self._text}: {lookup.not_found(name)}") from None
        finally:
            lookup.finish()
        if len(self._parts) > 1:
            with suppress(TypeError):  # no weak reference to a dict, say: it is looked up each time
                self._root = ref(value)
        return value

    def _whole(self, value: Any) -> int:
        number = value
        if self._device.is_tensor(value):
            number = self._device.number(value)  # without waiting for a device
        elif type(value).__module__ == "numpy":
            number = value.item()
        if number.__class__ not in (int, float) or number == NULL_FLOAT or number != number // 1:
            raise TypeError(f"{self.text} is {type(value).__name__}; the number of a step is a whole number")
        return int(number)

    def _find_trainer(self) -> None:
        """Find the trainer whose loop runs the step."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            path = TRAINERS.get(str(frame.f_globals.get("__name__")))
            if path is not None:
                trainer = frames.read(frame, ("self",)).get("self")
                if trainer is not None:
                    self._parts, self._root = ["Trainer", *path], ref(trainer)
                    self.text = ".".join(map(str, self._parts))
                    self.why = f"found in the loop of {type(trainer).__module__}"
                    return
            frame = frame.f_back


def parts_of(text: str) -> list[str | int]:
    """Return `state["step"].now` as ["state", "step", "now"]."""
    return [int(at) if at else name or one or other for name, at, one, other in _PART.findall(text)]
