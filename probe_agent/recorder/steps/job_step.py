"""The job's own number of its step: `step.from`, or what a Trainer of Hugging Face's or Lightning counts.

Runs on the training thread where a step ends: the trainer is looked for once, when steps begin to be counted (a walk
over the frames, 50 µs); its count is read in the first steps and then in one step in 16. What is reached from
an object is read from that object, held by a weak reference; a variable is looked up as eval does, 20 to 50 µs.
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
#: In one step of so many the job's number is read, once it is known that it goes on as it should.
READ_EVERY = 16
#: So often may reading it fail, or find that it stands still.
MAX_FAILURES = 3
#: Modules whose `Trainer` counts optimizer steps, and where.
TRAINERS = {
    "transformers.trainer": ("state", "global_step"),
    "lightning.pytorch.trainer.trainer": ("global_step",),
    "pytorch_lightning.trainer.trainer": ("global_step",),
}
_PART = re.compile(r"\.?([A-Za-z_]\w*)|\[(\d+)\]|\[(?:'([^']*)'|\"([^\"]*)\")\]")


class JobStep:
    """What the job says its step is, as far as it says anything. Raises only what the job's signal handlers raise."""

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
        #: What it is read from, and why that is so, or why it cannot be read.
        self.text = self.why = ""
        self._parts: list[str | int] = []
        #: What the parts behind the first are reached from, once it is found.
        self._root: Callable[[], object] | None = None
        self._previous = self._num_reads = self._num_failures = self._until_read = 0
        #: By how much it grows from step to step.
        self.stride = 1

    @property
    def is_known(self) -> bool:
        """Whether there is a number of the job's."""
        return bool(self._parts)

    def begin(self) -> None:
        """Steps begin to be counted: see who else counts them."""
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
        """The job's number of the step that ends now, where this is a step in which it is read."""
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
                self._parts = []  # for good, unless it is set anew
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
            with suppress(TypeError):  # a dict, say: it is looked up each time
                self._root = ref(value)
        return value

    def _whole(self, value: Any) -> int:
        number = value
        if self._device.is_tensor(value):
            number = self._device.number(value)  # nothing waits for a device
        elif type(value).__module__ == "numpy":
            number = value.item()
        if number.__class__ not in (int, float) or number == NULL_FLOAT or number != number // 1:
            raise TypeError(f"{self.text} is {type(value).__name__}; the number of a step is a whole number")
        return int(number)

    def _find_trainer(self) -> None:
        """The trainer whose loop the step was taken in."""
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
    """`state["step"].now` as ["state", "step", "now"]."""
    return [int(at) if at else name or one or other for name, at, one, other in _PART.findall(text)]
