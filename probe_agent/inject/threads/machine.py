"""Machine code for this CPU: `machine` is one of two modules with the same functions, chosen in this one place."""

from __future__ import annotations

import platform

from . import stub_aarch64, stub_x86_64

__all__ = ["ARCHITECTURES", "machine"]

#: Modules by `platform.machine()`.
ARCHITECTURES = {"x86_64": stub_x86_64, "aarch64": stub_aarch64}
machine = ARCHITECTURES.get(platform.machine(), stub_x86_64)
