"""The mode of a thread of the recorder while the job captures a graph; without CUDA it does nothing."""

from __future__ import annotations

import ctypes
import os
import sys
from types import ModuleType, SimpleNamespace

import pytest

from probe_agent.recorder.torch.captures import allow_captures_elsewhere


def cuda(is_initialized: bool) -> ModuleType:
    module = ModuleType("torch.cuda")
    module.is_initialized = lambda: is_initialized  # type: ignore[attr-defined]
    return module


def test_no_driver_is_loaded_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, mode: int) -> None:
        assert mode & os.RTLD_NOLOAD
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    for initialized in (False, True):
        monkeypatch.setitem(sys.modules, "torch.cuda", cuda(initialized))
        allow_captures_elsewhere()


def test_the_mode_of_the_calling_thread_is_relaxed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    driver = SimpleNamespace(cuThreadExchangeStreamCaptureMode=lambda mode: asked.append(mode._obj.value))
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode: driver if name == "libcuda.so.1" else None)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda(True))

    allow_captures_elsewhere()

    assert asked == [2]
