"""Environment of the process, for `process.env`: versions, settings of torch and Probe, selected variables, files.

It reports only environment variables that are known to affect training, and none whose name suggests a secret. Files
are named, not read. Takes 0.1 ms on a thread of the recorder, plus the time of `torch.modules` to find the models.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from types import ModuleType
from typing import Any

from ..guest.redaction import redacted_value
from ..names.candidates import members
from ..source import Recorder
from ..torch import inventory, loaded

__all__ = ["answer"]

READS = True

COLUMNS = ("kind", "name", "value", "file")
VARIABLES = re.compile(
    r"(NCCL|TORCH|PYTORCH|CUDA|CUDNN|CUBLAS|OMP|GOMP|KMP|MKL|OPENBLAS|GLOO|UCX|FI|IBV|MLX5|HSA|HIP|ROCR|RCCL|MIOPEN)\w*"
    r"|LD_PRELOAD|LD_LIBRARY_PATH|MALLOC_\w+|PYTHON(DEVMODE|HASHSEED|MALLOC|OPTIMIZE|UNBUFFERED|PATH)|TOKENIZERS_PARALLELISM"
)
SECRET = re.compile(r"KEY|TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|AUTH", re.I)
MAX_CODE_FILES = 200
_INSTALLED = re.compile(r"[/\\](site|dist)-packages[/\\]")

Row = list[object]  # kind, name, value, file


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per trait; a row of code has a file instead of a value."""
    rows = [
        *_versions(),
        *_hardware(),
        *_torch_settings(),
        *_seeds(),
        *_variables(),
        *_ours(recorder),
        *_code(recorder),
    ]
    return {"columns": COLUMNS, "rows": rows, "notes": []}


def _versions() -> Iterator[Row]:
    yield ["version", "python", ".".join(map(str, sys.version_info[:3])), None]
    yield ["version", "kernel", os.uname().release, None]
    yield ["version", "machine", os.uname().machine, None]
    yield ["version", "nvidia driver", _driver(), None]
    for name in ("torch", "numpy", "triton", "transformers", "lightning", "accelerate", "deepspeed", "flash_attn"):
        module = loaded(name)
        if module is not None:
            yield ["version", name, _text(lambda module=module: module.__version__), None]  # type: ignore[misc]
    torch: Any = loaded("torch")
    if torch is not None:
        yield ["version", "cuda of torch", _text(lambda: torch.version.cuda), None]
        yield ["version", "hip of torch", _text(lambda: torch.version.hip), None]
        nccl = getattr(torch._C, "_nccl_version", None)
        yield ["version", "nccl", _text(nccl) if nccl is not None else None, None]


def _hardware() -> Iterator[Row]:
    yield ["hardware", "cpus", str(os.cpu_count()), None]
    yield ["hardware", "cpu model", _found("/proc/cpuinfo", r"model name\s*: (.*)"), None]
    kib = _found("/proc/meminfo", r"MemTotal:\s*(\d+) kB")
    yield ["hardware", "memory", None if kib is None else f"{int(kib) / 2**20:.0f} GiB", None]
    torch: Any = loaded("torch")
    if torch is not None and torch.cuda.is_initialized():  # counting them before that would begin to initialise CUDA
        yield ["hardware", "cuda devices", _text(torch.cuda.device_count), None]
        yield ["hardware", "cuda capability", _text(lambda: torch.cuda.get_device_capability()), None]


def _found(path: str, pattern: str) -> str | None:
    try:
        with open(path) as file:
            found = re.search(pattern, file.read(1 << 16))
    except OSError:
        return None
    return found[1] if found else None


def _driver() -> str | None:
    try:
        with open("/proc/driver/nvidia/version") as file:
            found = re.search(r"\b\d+\.\d+(\.\d+)?\b", file.readline())
    except OSError:
        return None  # no driver here
    return found[0] if found else None


def _torch_settings() -> Iterator[Row]:
    """Yield torch's settings, read by calls that change nothing."""
    yield ["setting", "cpus the main thread may use", str(len(os.sched_getaffinity(os.getpid()))), None]
    torch: Any = loaded("torch")
    if torch is None:
        return
    for name in (
        "are_deterministic_algorithms_enabled",
        "get_default_dtype",
        "get_float32_matmul_precision",
        "get_num_threads",
        "is_anomaly_check_nan_enabled",
        "is_anomaly_enabled",
    ):
        read = getattr(torch, name, None)
        if read is not None:
            yield ["setting", f"torch.{name}()", _text(read), None]
    for path in (
        "autograd.profiler._is_profiler_enabled",
        "backends.cudnn.benchmark",
        "backends.cudnn.deterministic",
        "backends.cudnn.enabled",
    ):
        yield ["setting", f"torch.{path}", _text(lambda path=path: _attribute(torch, path)), None]  # type: ignore[misc]


def _seeds() -> Iterator[Row]:
    """Yield the seed of torch's generator; reading it draws nothing."""
    torch: Any = loaded("torch")
    if torch is not None:
        yield ["seed", "torch.initial_seed()", _text(torch.initial_seed), None]


def _attribute(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _variables() -> Iterator[Row]:
    for name in sorted(os.environ):
        value = os.environ.get(name)  # the job may have removed it meanwhile
        if value is not None and VARIABLES.fullmatch(name) and not SECRET.search(name):
            yield ["variable", name, redacted_value(name, value), None]


def _ours(recorder: Recorder) -> Iterator[Row]:
    for setting in recorder.settings.describe():
        yield ["probe", setting["name"], setting["value"], None]


def _code(recorder: Recorder) -> Iterator[Row]:
    """Yield the script, the modules beside and below it, and the files of the models' classes, without those of torch
    and the standard library."""
    names = {"__main__", *_beside_script()}
    others = {"torch", *getattr(sys, "stdlib_module_names", ())}  # it came with Python 3.10
    for model, _ in recorder.find(inventory.MODEL):
        for module in islice(members(model), inventory.MAX_OBJECTS):
            names.update(base.__module__ for base in type(module).__mro__[:-1])
    for name in sorted(names)[:MAX_CODE_FILES]:
        file = getattr(sys.modules.get(name), "__file__", None)
        if isinstance(file, str) and name.partition(".")[0] not in others:
            yield ["code", name, None, os.path.abspath(file)]


def _beside_script() -> Iterator[str]:
    """Yield the names of the modules whose files are in the script's folder or below, without those installed there."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if not isinstance(script, str):
        return
    folder = os.path.dirname(os.path.abspath(script)) + os.sep
    for name, module in list(sys.modules.items()):
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str) and os.path.abspath(file).startswith(folder) and not _INSTALLED.search(file):
            yield name


def _text(read: Callable[[], object]) -> str | None:
    """Return the setting as text, or the type of the error if this torch does not have it."""
    try:
        value = read()
    except (AttributeError, RuntimeError) as error:
        return f"({type(error).__name__})"
    if value is None:
        return None
    return ".".join(map(str, value)) if isinstance(value, tuple) else str(value)
