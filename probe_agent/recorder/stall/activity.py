"""Name of what a thread does, from its stack: work that takes long in a healthy job, or something it waits for.

Only frames of Python, torch and well-known libraries have names that do not change; the job's own functions are
recognised as an evaluation or a checkpoint by their usual names. Runs on the recorder's thread; reads no variable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["ACTIVITIES", "COLLECTIVE", "EVALUATION", "GENERATION", "PYTHON", "Activity", "activity_of", "place_of"]

EVALUATION, GENERATION, SAVE, LOAD, COMPILE, IMPORT = "evaluation", "generation", "save", "load", "compile", "import"
INIT, COLLECTIVE, DATA, EVENTS, ENDED, PYTHON = "init_process_group", "collective", "data", "events", "ended", "python"
#: All names, for the description of the column.
ACTIVITIES = (EVALUATION, GENERATION, SAVE, LOAD, COMPILE, IMPORT, INIT, COLLECTIVE, DATA, EVENTS, ENDED, PYTHON)
#: A healthy job may spend minutes in these.
_WORK = frozenset((EVALUATION, GENERATION, SAVE, LOAD, COMPILE, IMPORT, EVENTS, ENDED))
#: The end of a file's path, a function in it, and what it means; the first one that fits a frame.
_LIBRARY_FRAMES = (
    (r"torch/utils/data/dataloader\.py", r"_?(try_)?(next|get)_data|__next__", DATA),
    (r"torch/distributed/checkpoint/.*", r"load.*|.*_load.*|read_.*", LOAD),
    (r"torch/distributed/checkpoint/.*", r".*", SAVE),
    (r"torch/serialization\.py", r"_?(legacy_)?load", LOAD),
    (r"torch/serialization\.py", r".*", SAVE),
    (r"safetensors/.*", r"save.*", SAVE),
    (r"safetensors/.*", r"load.*|safe_open", LOAD),
    (r"torch/distributed/distributed_c10d\.py", r"init_process_group", INIT),
    (r"torch/distributed/rendezvous\.py", r".*", INIT),
    (r"torch/distributed/(distributed_c10d|_functional_collectives)\.py", r"[a-z].*", COLLECTIVE),
    (r"torch/__init__\.py", r"compile", COMPILE),
    (r"torch/_dynamo/convert_frame\.py", r".*", COMPILE),
    (r"torch/_dynamo/eval_frame\.py", r"_?optimize", COMPILE),
    (r"torch/_inductor/compile_fx\.py", r".*compile.*", COMPILE),
    (r"torch/_inductor/(graph|scheduler|async_compile|cpp_builder|select_algorithm)\.py", r".*", COMPILE),
    (r"triton/compiler/.*", r".*", COMPILE),
    (r"asyncio/base_events\.py", r"_run_once", EVENTS),
    (r"<frozen importlib\._bootstrap>", r"_find_and_load", IMPORT),
)
_KNOWN = [(re.compile(rf"(.*/)?{file}"), re.compile(func), name) for file, func, name in _LIBRARY_FRAMES]
#: The same for functions of any file.
_FUNCTIONS = [
    (re.compile(r"(run_|do_|_)*(evaluat(e|ion)|eval|validat(e|ion))(_.*)?|(val|test)(_(loop|epoch))?"), EVALUATION),
    (re.compile(r"_*(generate|rollout|collect_rollout)(_.*)?"), GENERATION),
    (re.compile(r"_*save_\w*(checkpoint|model|state|pretrained)\w*|_*(save|checkpoint)"), SAVE),
    (re.compile(r"_*load_\w*(checkpoint|model|state|pretrained)\w*|from_pretrained|_*resume\w*"), LOAD),
]
#: Libraries: what is not the job's own code.
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+\w*/|^<frozen|^<string>$|^$")

Frames = Sequence[Mapping[str, Any]]  # as operations/stacks.py answers: func, file, lineno; innermost first


class Activity(NamedTuple):
    """What a thread does."""

    name: str
    #: What the job's functions further out are there for; empty if that is not known.
    within: str
    #: The job's innermost line: `evaluate (train.py:88)`; empty if no frame is the job's own.
    place: str

    def is_work(self, moves: bool) -> bool:
        """Return whether a healthy job may do this for minutes; in an evaluation only if the thread moves."""
        if self.name in _WORK or self.within in (SAVE, LOAD, COMPILE, IMPORT):
            return True
        return self.within in (EVALUATION, GENERATION) and moves


def activity_of(frames: Frames | None, phase: str = "", in_collective: bool = False) -> Activity:
    """Return what a thread with these frames does, None if it has ended. `phase` is that of the running step, if it is
    an evaluation or a generation; `in_collective` tells that one has been under way for long."""
    if not frames:
        return Activity(ENDED, "", "")
    first = next((at for at, frame in enumerate(frames) if _is_job(frame)), len(frames))
    known = [name for name in map(_of_library, frames[:first]) if name]
    outer = [name for frame in frames[first:] for name in (_of_library(frame), _of_function(frame)) if name]
    within = next((name for name in outer if name in _WORK and name != EVENTS), "") or phase
    # The outermost of them is what the job has called; the others are how that is done.
    name = known[-1] if known else COLLECTIVE if in_collective else ""
    if not name:
        name = next(filter(None, map(_of_function, frames[:first])), "") or within or PYTHON
    return Activity(name, within if within != name else "", place_of(frames))


def place_of(frames: Frames) -> str:
    """Return the job's innermost line as text; empty if no frame is the job's own."""
    for frame in frames:
        if _is_job(frame):
            return f"{_short(frame)} ({str(frame['file']).rpartition('/')[2]}:{frame['lineno']})"
    return ""


def _is_job(frame: Mapping[str, Any]) -> bool:
    return not _LIBRARY.search(str(frame["file"]))


def _of_library(frame: Mapping[str, Any]) -> str:
    file, func = str(frame["file"]), _short(frame)
    return next((name for files, funcs, name in _KNOWN if funcs.fullmatch(func) and files.fullmatch(file)), "")


def _of_function(frame: Mapping[str, Any]) -> str:
    func = _short(frame)
    return next((name for funcs, name in _FUNCTIONS if funcs.fullmatch(func)), "")


def _short(frame: Mapping[str, Any]) -> str:
    return str(frame["func"]).rpartition(".")[2]
