"""Reason why no step has been recorded: what was seen of the job since the recorder started, and what is awaited.

Runs on our own thread, every `flush.interval` as long as python.steps is empty; some 10 µs.
"""

from __future__ import annotations

from time import monotonic

from .source import Awaited, Recorder

__all__ = ["why_no_steps"]

#: So long we wait for the first step before we say that something is missing.
PATIENCE_S = 5.0
BY_HAND = "call probe_agent.step() where a step of the job ends"
MAX_NAMED = 4


def why_no_steps(recorder: Recorder) -> Awaited:
    """Why python.steps has no row."""
    seen, step = recorder.sightings, recorder.step
    if step.thread is not None:
        told = "the step that was running when the recorder started gets no row, and the next one has not ended yet"
        return Awaited(told, "ask again later; probe … backtrace shows where the job is")
    num_backwards = step.micro_batches
    if num_backwards and not seen.optimizers:
        told = f"backward was called {_times(num_backwards)}, and no step of an optimizer and no update of the"
        return Awaited(f"{told} parameters was seen", BY_HAND)
    if monotonic() - seen.since < PATIENCE_S:
        return Awaited("the first step has not ended yet", "ask again in some seconds")
    if seen.optimizers:
        told = f"{', '.join(seen.optimizers[:MAX_NAMED])} has not stepped yet"
        if num_backwards:
            told += f", though backward was called {_times(num_backwards)}"
        return Awaited(told, f"wait for its first step; probe … backtrace shows where the job is; or {BY_HAND}")
    if seen.modules:
        named = sorted(seen.modules.items(), key=lambda item: -item[1])[:MAX_NAMED]
        told = ", ".join(f"{name} (seen {_times(num)})" for name, num in named)
        return Awaited(f"no optimizer has stepped, and no module is followed of those that were seen: {told}", BY_HAND)
    return Awaited("no step of an optimizer, no backward and no call of a module was seen", BY_HAND)


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
