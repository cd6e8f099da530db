"""The children of a job that is attached to (DataLoader workers, subprocesses) contain nothing of the recorder."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from inject.conftest import detach
from support.forked import Forked
from support.waiting import until

from probe_agent import inject

from .test_ends import num_steps

pytestmark = pytest.mark.torch

#: Trains an epoch for each line it is told, with new workers, and says what a worker and a subprocess are like.
TRAINING = """
import json, os, subprocess, sys
import torch

LOOK = '''
import os, sys
def link(name):
    try:
        return os.readlink("/proc/self/fd/" + name)
    except FileNotFoundError:
        return ""  # closed since, by another thread

def look():
    links = map(link, os.listdir("/proc/self/fd"))
    hooks = sys.modules["torch.nn.modules.module"] if "torch" in sys.modules else None
    optimizers = sys.modules["torch.optim.optimizer"] if "torch" in sys.modules else None
    return {
        "descriptors": [link for link in links if "probe-" in link],
        "rings": [line.split()[-1] for line in open("/proc/self/maps") if "probe-" in line],
        "hooks": [len(table) for table in (
            hooks._global_forward_hooks, hooks._global_forward_pre_hooks, optimizers._global_optimizer_pre_hooks,
            optimizers._global_optimizer_post_hooks)] if hooks else [],
        "watchers": len(getattr(sys, "_probe_fork_watchers", ())),
        "loaded": [name for name in sys.modules if "probe" in name],
    }
'''
exec(LOOK)

class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, at): return torch.ones(2), json.dumps(look())

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
print("ready", flush=True)
for line in sys.stdin:
    worker = []
    for batch, looks in torch.utils.data.DataLoader(Data(), num_workers=1, multiprocessing_context="fork"):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        worker += map(json.loads, looks)
    child = subprocess.run([sys.executable, "-c", LOOK + "import json; print(json.dumps(look()))"], capture_output=True, check=True)
    print(json.dumps([worker, json.loads(child.stdout)]), flush=True)
"""  # noqa: E501


def epoch(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("epoch\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


@pytest.mark.situation(
    "DataLoader workers or a subprocess start while attached", "no hook, descriptor or ring in these"
)
def test_workers_and_subprocesses_are_clean(probe: Any) -> None:
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with Forked(["-c", TRAINING], **pipes) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            (before, *_), _ = epoch(process)
            attached = inject.attach(process.pid)
            epochs: list[Any] = []

            def recorded_one() -> bool:
                epochs.append(epoch(process))
                return num_steps(probe, process.pid) > 0

            until(recorded_one, 60.0)
            recorded = num_steps(probe, process.pid)
            detach(attached)
        finally:
            process.kill()

    assert recorded <= 4 * len(epochs)  # the training's own: none by a worker
    for workers, child in epochs:
        assert len(workers) == 4
        for one in workers:
            assert one == before
        assert child == {"descriptors": [], "rings": [], "hooks": [], "watchers": 0, "loaded": []}
