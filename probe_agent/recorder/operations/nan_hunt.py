"""Hunt for the module that makes the first value that is not finite, for `probe … nan --hunt`.

The training thread pays for looking (steps/nan_hunt.py). A thread of the recorder wakes 20 times a second meanwhile.
When the client leaves or the time is over, nothing is looked at from that moment on, and the hooks are removed when the
step ends.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Mapping
from time import monotonic
from typing import Any

from ..control.reply import Reply
from ..source import Recorder
from ..steps.nan_hunt import NanHunt
from ..steps.tensor_reader import GRADIENT, items_of
from ..torch import inventory, loaded
from ..torch.captures import allow_captures_elsewhere
from ..torch.dynamo import has_compiled

__all__ = ["stream"]

POLL_S = 0.05
#: Time for the training thread to end its step, and for values on the device to arrive.
LEAVE_S = 2.0
_one_at_a_time = allocate_lock()


def stream(recorder: Recorder, request: Mapping[str, Any], reply: Reply) -> Mapping[str, object]:
    """Watch steps until one comes to a bad end; say when it begins, and return what was found."""
    steps, seconds = request.get("steps"), request.get("seconds")
    every, budget_ms = request.get("every"), request.get("budget_ms")
    if not (steps is None or (isinstance(steps, int) and steps > 0)):
        return _error(f"invalid number of steps {steps!r}", "use whole numbers from 1")
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        return _error(f"invalid number of seconds {seconds!r}", "use a number above 0")
    if not isinstance(every, int) or every < 1:
        return _error(f"invalid every {every!r}", "use whole numbers from 1")
    if not isinstance(budget_ms, (int, float)) or not budget_ms > 0:
        return _error(f"invalid budget {budget_ms!r}", "use a number of milliseconds above 0")
    if loaded("torch.nn.modules.module") is None or loaded("torch.optim.optimizer") is None:
        return _error("cannot watch modules: the target has not imported torch", "use a target that has: probe list")
    if not _one_at_a_time.acquire(False):
        return _error("a hunt is under way in this target", "try again when it has ended")
    try:
        models = [(name, model) for name, model, _ in inventory.numbered(recorder.find(inventory.MODEL))]
        hunt = NanHunt(
            recorder.at_step,
            recorder.step,
            recorder.device,
            items_of(models, (), (GRADIENT,)),
            every=every,
            num_steps=steps,
            budget_ms=float(budget_ms),
            fail=recorder.fail,
        )
        del models
        allow_captures_elsewhere()  # this thread asks whether the values have arrived
        with recorder.step.traced_by("hunt"):
            recorder.at_step.submit(hunt)
            try:
                _follow(hunt, recorder, reply, monotonic() + float(seconds))
            finally:
                _end(hunt, recorder)
        return _answer(hunt, recorder)
    finally:
        _one_at_a_time.release()


def _follow(hunt: NanHunt, recorder: Recorder, reply: Reply, deadline: float) -> None:
    """Wait until it is over, or is to end."""
    is_told = False
    while not hunt.wait(POLL_S):
        if hunt.is_watching and not is_told:
            is_told = True
            reply.send({"watching": True})
        if reply.cancelled() or recorder.at_step.closed or monotonic() >= deadline:
            return


def _end(hunt: NanHunt, recorder: Recorder) -> None:
    """End it on the training thread if a step ends soon, otherwise here."""
    hunt.cancel()
    deadline = monotonic() + LEAVE_S
    while hunt in recorder.at_step.pending and not recorder.at_step.closed and monotonic() < deadline:
        if hunt.wait(POLL_S):
            break
    recorder.at_step.withdraw(hunt)
    hunt.leave()
    while not hunt.collect() and monotonic() < deadline:
        hunt.wait(POLL_S)


def _answer(hunt: NanHunt, recorder: Recorder) -> Mapping[str, object]:
    notes = [hunt.problem] if hunt.problem else []
    if not hunt.num_watched:
        notes.append(f"no watched step ended; the last step was {recorder.at_step.last_step()}")
    elif not hunt.num_calls:
        notes.append("no module was called on the training thread")
    if has_compiled():
        notes.append("modules inside a compiled region are not visible: the compiled module stands for them")
    if hunt.num_unseen:
        notes.append(f"{hunt.num_unseen} looks were left out, as the budget of their step was spent: raise --budget")
    if hunt.num_unreadable:
        notes.append(f"{hunt.num_unreadable} tensors could not be read: of a class or type that holds no plain floats")
    found = hunt.found
    return {
        "state": "found" if found is not None else "nothing",
        "origin": None if found is None else found._asdict(),
        "step": None if found is None else hunt.found_step,
        "at": None if found is None else hunt.found_at,
        "counted": recorder.step.is_counted,
        "first_step": hunt.first_step,
        "last_good": hunt.last_good,
        "watched": hunt.num_watched,
        "calls": hunt.num_calls,
        "unseen": hunt.num_unseen,
        "notes": notes,
    }


def _error(message: str, hint: str) -> Mapping[str, object]:
    return {"error": {"message": message, "hint": hint}}
