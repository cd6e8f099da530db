"""How a program and its test speak: facts in files, and files that tell it something."""

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch

PAUSE_S = 0.005


class Control:
    def __init__(self, doc, **options):
        parser = argparse.ArgumentParser(description=doc)
        parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
        parser.add_argument("--folder", type=Path, required=True)
        for name, default in options.items():
            parser.add_argument(f"--{name}", default=default, type=type(default))
        self.args = parser.parse_args()
        self.device = self.args.device
        self.on_gpu = self.device == "cuda"
        self._parent = os.getppid()
        if not self.on_gpu:
            torch.set_num_threads(1)

    def say(self, name, **facts):
        """Leave facts for the test; of a job of several ranks, those of rank 0."""
        path = self.args.folder / f"{name}.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"pid": os.getpid(), **facts}))
        part.rename(path)

    def told(self, name):
        if os.getppid() != self._parent:
            raise SystemExit("the test is gone")
        return (self.args.folder / name).exists()

    def wait(self, name):
        while not self.told(name):
            time.sleep(PAUSE_S)

    def synchronize(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def mib(self):
        """Return what torch's allocator has given out and holds, in MiB; zeros on a CPU."""
        if not self.on_gpu:
            return {"allocated": 0.0, "reserved": 0.0, "peak": 0.0}
        of_allocator = torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.max_memory_allocated()
        return {name: size / 2**20 for name, size in zip(("allocated", "reserved", "peak"), of_allocator, strict=False)}


def deterministic():
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(True)


def digest(model):
    """Return a digest of the bits of all parameters."""
    found = hashlib.sha256()
    for parameter in model.parameters():
        value = parameter.detach()
        value = value.to_local() if hasattr(value, "to_local") else value
        found.update(value.float().cpu().numpy().tobytes())
    return found.hexdigest()


class Net(torch.nn.Module):
    """Three layers with a name each."""

    def __init__(self, width=256):
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.middle = torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, width), torch.nn.GELU())
        self.head = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.head(self.middle(self.first(x)))
