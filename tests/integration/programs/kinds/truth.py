"""Self-report of a program: its own counter, its own clock, its losses and its weights.

The programs of this folder are typical of their kind, and also time themselves. Their last line on stdout is the
truth that the recorder's rows are compared with. Nothing in here depends on Probe.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.append(str(Path(__file__).parents[3] / "targets"))

from snapshot import snapshot


class Truth:
    """The counters and the stopwatch of one program that will take `num_steps` steps."""

    def __init__(self, num_steps: int = 0) -> None:
        self.num_steps = num_steps
        self.steps = 0
        self.losses: list[float] = []
        self.micro_batches = 0
        #: Seconds by phase and step; a phase has the name of its column.
        self.seconds: dict[str, dict[int, float]] = {}
        #: What the job does now: train, eval or generate.
        self.doing = "train"
        #: Calls of modules with a stopwatch of their own: name, stage, what the job did, step, seconds.
        self.calls: list[tuple[str, str, str, int, float]] = []
        self.others: dict[str, Any] = {}
        self._visit = os.environ.get("PROGRAM_VISIT")
        self._before: object = None

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        """Time this phase in the current step, in seconds."""
        before, self.doing = self.doing, {"evaluation": "eval", "generation": "generate"}.get(phase, self.doing)
        began = perf_counter()
        try:
            yield
        finally:
            self.add(phase, perf_counter() - began)
            self.doing = before

    def add(self, phase: str, seconds: float) -> None:
        steps = self.seconds.setdefault(phase, {})
        steps[self.steps] = steps.get(self.steps, 0.0) + seconds

    def batches(self, loader: Iterable[Any], phase: str = "data_wait") -> Iterator[Any]:
        """Yield the loader's batches; the clock includes the wait for each."""
        batches = iter(loader)
        while True:
            with self.clock(phase):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def step(self, loss: float | None = None) -> None:
        """Mark the end of a step of the job."""
        self.steps += 1
        if loss is not None:
            self.losses.append(loss)
        if self._visit is not None:
            self._be_visited(Path(self._visit))

    def _be_visited(self, folder: Path) -> None:
        """Expect an attach after the fourth step, a visit by two thirds of them, and a detach before the last one."""
        if self.steps == 4:
            self._before = _look()
            (folder / "come").touch()
        elif self.steps == self.num_steps * 2 // 3:
            _wait_for(folder / "here")
        elif self.steps == self.num_steps - 1:
            (folder / "leave").touch()
            _wait_for(folder / "gone")
        elif self.steps == self.num_steps:  # the graph of the step before, which knows us, is gone
            self.others["before"], self.others["after"] = self._before, _look()

    def tell(self, *values: Any) -> None:
        """Print the last line: everything, with a digest of `values` (modules, tensors, arrays, text)."""
        truth = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        print(json.dumps({**truth, **truth.pop("others"), "digest": digest(*values)}), flush=True)


def digest(*values: Any) -> str:
    """Return a digest of modules, tensors, arrays, texts, and of torch's next random number: a draw shows too."""
    found = hashlib.sha256()
    torch = sys.modules.get("torch")
    for value in (*values, *([torch.rand(2)] if torch else ())):
        if hasattr(value, "state_dict"):
            value = [part for part in value.state_dict().values() if hasattr(part, "numpy")]
        for part in value if isinstance(value, (list, tuple)) else [value]:
            if hasattr(part, "full_tensor"):
                part = part.full_tensor()
            if hasattr(part, "detach"):
                part = part.detach().float().numpy()
            found.update(part.tobytes() if hasattr(part, "tobytes") else repr(part).encode())
    return found.hexdigest()


def _look() -> dict[str, object]:
    """Return the state of this process, without what the program itself changes while it runs."""
    return {name: value for name, value in snapshot().items() if name != "main"}


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60.0
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody made {path.name}")
        time.sleep(0.005)
