"""The device that the tests run on, and why they cannot if there is none."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime, timezone

from support.commands import plain

__all__ = ["VARIABLE", "Machine", "find"]

#: Set to `cpu`, every program and every command of these tests runs, and what only a GPU can show is left out.
VARIABLE = "PROBE_GPU_DEVICE"
LOOK_S = 120.0
_LOOK = """
import json, torch
found = {"torch": torch.__version__, "cuda": torch.version.cuda, "available": torch.cuda.is_available()}
if found["available"]:
    found["name"] = torch.cuda.get_device_name(0)
    found["memory"] = torch.cuda.get_device_properties(0).total_memory
    torch.zeros(1, device="cuda").add_(1).item()
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Machine:
    """`kind` is cuda or cpu; `about` names the machine in one line."""

    kind: str
    about: str

    @property
    def has_gpu(self) -> bool:
        return self.kind == "cuda"


def find() -> Machine | str:
    """Return the machine, or the reason why the tests cannot run on it. Without a driver this costs a millisecond."""
    chosen = os.environ.get(VARIABLE, "cuda")
    if chosen == "cuda":
        try:
            ctypes.CDLL("libcuda.so.1")
        except OSError:
            return "no NVIDIA GPU here: the driver's libcuda.so.1 cannot be loaded"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=LOOK_S, env=plain(), check=True
        )
    except subprocess.CalledProcessError as error:
        return f"torch does not work here: {error.stderr.strip().splitlines()[-1:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    if chosen == "cuda" and not found["available"]:
        return f"torch {found['torch']} (CUDA {found['cuda']}) sees no GPU: is it a CPU build"
    device = f"{found['name']}, driver {_driver()}" if chosen == "cuda" else "CPU in place of a GPU"
    return Machine(
        chosen,
        f"{device}, torch {found['torch']}, CUDA {found['cuda']}, Python {platform.python_version()},"
        f" {os.cpu_count()} cores, Linux {platform.release()}, {datetime.now(timezone.utc):%Y-%m-%d %H:%M} UTC",
    )


def _driver() -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return "unknown (no nvidia-smi)"
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "unknown"
