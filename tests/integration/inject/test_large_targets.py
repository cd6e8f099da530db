"""Targets with many threads, many libraries and a large address space. benchmarks/attach.py measures the time."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import shutil
from pathlib import Path

import pytest

from probe_agent import inject

from .conftest import detach
from .programs import FOREVER, program

THREADS = "import threading\nfor _ in range(200): threading.Thread(target=threading.Event().wait, daemon=True).start()"
SPACE = (
    "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
    "size = ctypes.c_size_t(64 << 30)\n"
    "assert libc.mmap(None, size, 3, 0x4022, -1, ctypes.c_size_t(0)) != ctypes.c_void_p(-1).value"
)
MODULES = "import ctypes, glob\nmodules = [ctypes.CDLL(path) for path in glob.glob({folder!r} + '/*.so')]"


@pytest.mark.situation("200 threads", "works")
def test_two_hundred_threads() -> None:
    with program(THREADS + FOREVER) as process:
        detach(inject.attach(process.pid))


@pytest.mark.situation("64 GiB of address space", "works")
def test_sixty_four_gibibytes() -> None:
    with program(SPACE + FOREVER) as process:
        detach(inject.attach(process.pid))


@pytest.mark.situation("2,000 mapped modules, with 200 threads and 64 GiB as well", "works")
def test_two_thousand_modules(tmp_path: Path) -> None:
    found = importlib.util.find_spec("_bisect") or importlib.util.find_spec("_heapq")
    if found is None or not isinstance(found.loader, importlib.machinery.ExtensionFileLoader):
        pytest.skip("this Python has its extension modules in its own file")
    for number in range(2000):
        shutil.copy(str(found.origin), tmp_path / f"module{number}.so")
    code = "\n".join([THREADS, SPACE, MODULES.format(folder=str(tmp_path)), "assert len(modules) == 2000"])
    with program(code + FOREVER) as process:
        detach(inject.attach(process.pid))
