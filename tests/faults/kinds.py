"""`python -m faults.kinds NAME`: a program of tests/integration/programs/kinds as a long run, for false alarms.

These programs take a few dozen steps. Here the number is replaced in their source before it runs; the lines stay where
they are. What they note of each step is dropped from time to time: a list without an end is no healthy one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["KINDS", "NAMES"]

KINDS = Path(__file__).parents[1] / "integration" / "programs" / "kinds"
#: Those that train or serve with torch, each with its number of ranks. Three are no healthy ones as long runs: the
#: learning rate of `mnist` falls to nothing, the stages of `pipeline` work in turns, and `workers` learns noise, of
#: which its ReLUs die.
NAMES = {
    "accelerate_accumulate": 1, "amp": 1, "asyncio_server": 1, "checkpointing": 1, "compiled": 1, "custom_function": 1,
    "ddp": 2, "evolution": 1, "fsdp2": 2, "functional": 1, "gan": 1, "grpo": 1, "hf_trainer": 1, "inference": 1,
    "lbfgs": 1, "lightning_fit": 1, "manual_sgd": 1, "nanogpt": 1, "own_optimizer": 1, "own_tools": 1,
    "plain_sgd": 1, "ppo": 1, "reinforce": 1, "tensor_parallel": 4, "thread_pool_server": 1, "tied": 1,
}  # fmt: skip
#: What such a program calls its length.
_LENGTH = re.compile(r"^(STEPS|EPOCHS|EPISODES|ROLLOUTS|GENERATIONS|GROUPS|CALLS)\b(.*?)= (\d+)", re.MULTILINE)
LONG = 20_000
KEPT_STEPS = 1000


def _forget_from_time_to_time() -> None:
    from truth import Truth  # it lies beside the programs

    step = Truth.step

    def forgetting(self: Truth, loss: float | None = None) -> None:
        step(self, loss)
        if self.steps % KEPT_STEPS == 0:
            for notes in (self.losses, self.calls, *self.seconds.values()):
                notes.clear()

    Truth.step = forgetting  # type: ignore[method-assign]


if __name__ == "__main__":
    path = KINDS / f"{sys.argv[1]}.py"
    source, found = _LENGTH.subn(rf"\1\2= {LONG}", path.read_text())
    if not found:
        sys.exit(f"{path} does not say how long it runs")
    sys.path.insert(0, str(KINDS))
    _forget_from_time_to_time()
    exec(compile(source, str(path), "exec"))
