"""Saving and loading of checkpoints: `python.checkpoints`.

Wraps `torch.save` and `torch.load`, those of `torch.distributed.checkpoint` and `safetensors.torch` once the job has
imported them. Runs on the calling thread, only in these calls: two clock reads, a look at the keys of the outermost
dictionary and at the size of the file, 20 to 80 µs (benchmarks.hooks); no tensor is read. A call inside another one is
not recorded. Of `Module.load_state_dict` only a call is recorded that loaded nothing, which strict=False passes over.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from collections.abc import Mapping
from time import perf_counter_ns, time_ns
from typing import Any, NamedTuple

from ..ring.table import MIB, NULL_FLOAT, NULL_INT, Column, Table
from ..source import Awaited, Recorder
from ..source import Source as BaseSource
from ..steps.step import CHECKPOINT
from ..torch import host_number, loaded
from ..torch.patches import Patches

__all__ = ["Checkpoints", "Source"]

SAVE, LOAD = "save", "load"
MAX_KEYS, MAX_TEXT = 40, 300
#: Keys of a number that says how far the job was.
_STEPS = ("step", "global_step", "iter", "iteration", "iter_num", "epoch")


class Checkpoints(Table):
    name = "python.checkpoints"
    doc = "One row per call of torch.save, torch.load, torch.distributed.checkpoint and safetensors.torch."
    capacity = 2_048
    columns = (
        Column("step", "int", "", "number of the running step; -1 before the first"),
        Column("ts", "time", "UTC", "end of the call"),
        Column("kind", "text", "", "save or load"),
        Column("function", "text", "", "the function: torch.save"),
        Column("path", "text", "", "the file or folder; NULL if it was given an object without a name"),
        Column("duration", "float", "s", "time of the call"),
        Column("on_training_thread", "bool", "", "the thread that trains made it; true until that is known"),
        Column("size", "float", "MiB", "size of the file; NULL if unknown"),
        Column("free", "float", "MiB", "free space of its file system afterwards; NULL if unknown"),
        Column("has_model", "bool", "", "tensors outside of the states of optimizers"),
        Column("has_optimizer", "bool", "", "the state of an optimizer"),
        Column("has_scheduler", "bool", "", "the state of a learning rate scheduler"),
        Column("keys", "text", "", "keys of the outermost dictionary"),
        Column("saved_step", "int or null", "", "the job's number in it, under step, iteration or epoch"),
        Column("updates", "int or null", "", "updates that the optimizer in it had counted"),
        Column("lr", "float", "", "learning rate of the optimizer in it"),
        Column("loss", "float", "", "number in it whose key has loss in it"),
        Column("error", "text", "", "the exception that it raised, or why it loaded nothing; NULL if neither"),
    )


class _Content(NamedTuple):
    """Summary of an object that is saved or was loaded."""

    has_model: bool = False
    has_optimizer: bool = False
    has_scheduler: bool = False
    keys: str | None = None
    step: int = NULL_INT
    updates: int = NULL_INT
    lr: float = NULL_FLOAT
    loss: float = NULL_FLOAT


_NOTHING = _Content()


class _Function(NamedTuple):
    """A function that is wrapped: where it is found, and the places of the object and of the path among its arguments,
    with their names."""

    modules: tuple[str, ...]
    name: str
    kind: str
    content: tuple[int, str] | None
    path: tuple[int, str]


_FUNCTIONS = (
    _Function(("torch", "torch.serialization"), "save", SAVE, (0, "obj"), (1, "f")),
    _Function(("torch", "torch.serialization"), "load", LOAD, None, (0, "f")),
    _Function(
        ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"),
        "save", SAVE, (0, "state_dict"), (9, "checkpoint_id"),
    ),
    _Function(
        ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_saver"),
        "async_save", SAVE, (0, "state_dict"), (9, "checkpoint_id"),
    ),
    _Function(
        ("torch.distributed.checkpoint", "torch.distributed.checkpoint.state_dict_loader"),
        "load", LOAD, (0, "state_dict"), (9, "checkpoint_id"),
    ),
    _Function(("safetensors.torch",), "save_file", SAVE, (0, "tensors"), (1, "filename")),
    _Function(("safetensors.torch",), "load_file", LOAD, None, (0, "filename")),
)  # fmt: skip


class Source(BaseSource):
    name = "checkpoints"
    needs = ("torch", "torch.serialization", "torch.nn.modules.module")
    tables = (Checkpoints,)
    waits_for = Awaited("the job has saved and loaded nothing since the recorder started", "wait for a checkpoint")

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder)
        self._buffer = recorder.buffer(Checkpoints)
        self._patches = Patches()
        self._missing = list(_FUNCTIONS)
        #: Threads that are inside a call.
        self._inside: set[int] = set()

    def start(self) -> None:
        self._patches.wrap(sys.modules["torch.nn.modules.module"].Module, "load_state_dict", self._checked)
        self.tick()

    def tick(self) -> None:
        """Wrap what the job has imported since."""
        for function in list(self._missing):
            modules = [loaded(name) for name in function.modules]
            if all(hasattr(module, function.name) for module in modules):
                self._missing.remove(function)
                self._wrap(function, modules)

    def _wrap(self, function: _Function, modules: list[Any]) -> None:
        self._patches.wrap(modules[-1], function.name, lambda original: self._noted(original, function))
        ours = modules[-1].__dict__[function.name]
        for module in modules[:-1]:  # the same function under another name
            self._patches.put(module, function.name, ours)

    def stop(self) -> None:
        self._patches.restore()
        self._missing = list(_FUNCTIONS)

    def _checked(self, original: Any) -> Any:
        def load_state_dict(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            told = original(module, state_dict, *args, **kwargs)
            try:
                unexpected, missing = getattr(told, "unexpected_keys", None), getattr(told, "missing_keys", None)
                if unexpected and missing and len(unexpected) == len(state_dict):
                    self._nothing_loaded(unexpected, missing)
            except Exception as failure:
                if self.recorder.fail(self.name, failure):
                    raise
            return told

        return load_state_dict

    def _nothing_loaded(self, unexpected: list[str], missing: list[str]) -> None:
        text = (
            f"load_state_dict with strict=False loaded nothing: of the checkpoint's {len(unexpected)} keys, such as"
            f" {unexpected[0]}, the model has none; it misses {missing[0]}"
        )
        self._append(LOAD, "torch.nn.Module.load_state_dict", error=text[:MAX_TEXT])

    def _noted(self, original: Any, function: _Function) -> Any:
        def ours(*args: Any, **kwargs: Any) -> Any:
            ident = get_ident()
            if ident in self._inside:
                return original(*args, **kwargs)
            self._inside.add(ident)
            began = perf_counter_ns()
            told: Any = None
            error: BaseException | None = None
            try:
                told = original(*args, **kwargs)
                return told
            except BaseException as raised:
                error = raised
                raise
            finally:
                self._inside.discard(ident)
                self._write(function, args, kwargs, told, error, began, perf_counter_ns())
                # Its traceback holds this frame: the two would keep each other, and what the job's frames hold.
                error = told = None

        return ours

    def _write(
        self,
        function: _Function,
        args: Any,
        kwargs: Any,
        told: Any,
        error: BaseException | None,
        began: int,
        ended: int,
    ) -> None:
        step = self.recorder.step
        try:
            if step.thread == get_ident():
                step.may_begin_forward(CHECKPOINT, ended)
            content = told if function.content is None else _argument(args, kwargs, *function.content)
            self._row(function, content, _argument(args, kwargs, *function.path), error, ended - began)
        except Exception as failure:
            if self.recorder.fail(self.name, failure):
                raise

    def _row(self, function: _Function, content: Any, file: Any, error: BaseException | None, took: int) -> None:
        path = _path(file)
        size, free = _space(path) if error is None or function.kind == SAVE else (NULL_FLOAT, NULL_FLOAT)
        found = _NOTHING if content is None else _content(content)
        text = None if error is None else f"{type(error).__name__}: {error}"[:MAX_TEXT]
        name = f"{function.modules[0]}.{function.name}"
        self._append(function.kind, name, path, took, size, free, found, text)

    def _append(
        self,
        kind: str,
        function: str,
        path: str | None = None,
        took: int = 0,
        size: float = NULL_FLOAT,
        free: float = NULL_FLOAT,
        found: _Content = _NOTHING,
        error: str | None = None,
    ) -> None:
        number, step = self._buffer.number, self.recorder.step
        self._buffer.rows.append(
            (
                step.number,
                time_ns() // 1000,
                number(kind),
                number(function),
                number(path),
                took * 1e-9,
                step.thread in (None, get_ident()),
                size,
                free,
                found.has_model,
                found.has_optimizer,
                found.has_scheduler,
                number(found.keys),
                found.step,
                found.updates,
                found.lr,
                found.loss,
                number(error),
            )
        )


def _argument(args: tuple[Any, ...], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    return args[place] if place < len(args) else kwargs.get(name)


def _path(file: Any) -> str | None:
    """Return the path that a function was given, or that of an open file."""
    if type(file).__module__ in ("_io", "io"):
        file = getattr(file, "name", None)
    if isinstance(file, (str, os.PathLike)):
        return os.fspath(file)[:MAX_TEXT] if isinstance(os.fspath(file), str) else None
    return None


def _space(path: str | None) -> tuple[float, float]:
    """Return the size of a file and the free space beside it, in MiB."""
    if path is None or "://" in path:
        return NULL_FLOAT, NULL_FLOAT
    size = free = NULL_FLOAT
    try:
        size = os.path.getsize(path) / MIB if os.path.isfile(path) else NULL_FLOAT
        of_disk = os.statvfs(os.path.dirname(path) or ".")
        free = of_disk.f_bavail * of_disk.f_frsize / MIB
    except OSError:
        pass  # it does not exist, or no more
    return size, free


def _content(value: Any) -> _Content:
    if not issubclass(type(value), dict):
        return _Content(has_model=_has_tensors(value))
    has_model = _has_tensors(value)
    optimizer: Any = value if _is_optimizer(value) else None
    has_scheduler = False
    step, loss = NULL_INT, NULL_FLOAT
    keys = [str(key) for key in list(dict.keys(value))[:MAX_KEYS]]
    for key, item in list(dict.items(value))[:MAX_KEYS]:
        name = str(key).lower()
        if _is_optimizer(item):
            optimizer = item
        elif isinstance(item, dict):
            has_scheduler = has_scheduler or "last_epoch" in item
            nested = next((one for one in list(dict.values(item))[:3] if _is_optimizer(one)), None)
            optimizer = nested if optimizer is None else optimizer
            has_model = has_model or _has_tensors(item)
        elif type(item) is int and name in _STEPS and step == NULL_INT:
            step = item
        elif type(item) is float and "loss" in name:
            loss = item
    has_model = has_model or (not optimizer and any("model" in key.lower() for key in keys))
    return _Content(
        has_model,
        optimizer is not None,
        has_scheduler,
        ", ".join(keys)[:MAX_TEXT] or None,
        step,
        _updates(optimizer),
        _lr(optimizer),
        loss,
    )


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, dict) and "param_groups" in value and "state" in value


def _has_tensors(value: Any) -> bool:
    torch: Any = sys.modules["torch"]
    if issubclass(type(value), (torch.Tensor, torch.nn.Module)):
        return True
    return isinstance(value, dict) and any(issubclass(type(one), torch.Tensor) for one in list(dict.values(value))[:8])


def _lr(optimizer: Any) -> float:
    groups = None if optimizer is None else optimizer.get("param_groups")
    first = groups[0] if isinstance(groups, list) and groups else None
    lr = host_number(first.get("lr")) if isinstance(first, dict) else None
    return NULL_FLOAT if lr is None else lr


def _updates(optimizer: Any) -> int:
    """Return how often an optimizer had stepped, if its state says so on the host."""
    state = None if optimizer is None else optimizer.get("state")
    first = next(iter(dict.values(state)), None) if isinstance(state, dict) else None
    count = host_number(first.get("step")) if isinstance(first, dict) else None
    return NULL_INT if count is None else int(count)
