"""A job recorded from its first line computes the same as alone, bit for bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import plain

from .conftest import PATH_ENTRY

TRAINS = """
import hashlib, random, sys
import torch
from torch import nn

class Noise(torch.utils.data.Dataset):
    def __len__(self): return 32
    def __getitem__(self, index): return torch.randn(16) + random.random(), torch.tensor(index % 4)

def main():
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.GELU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = hashlib.sha256()
    for epoch in range(4):
        for batch, label in torch.utils.data.DataLoader(Noise(), 4, shuffle=True, num_workers=epoch % 2):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), label)
            loss.backward()
            optimizer.step()
            seen.update(loss.detach().numpy().tobytes())
    for weights in model.state_dict().values():
        seen.update(weights.numpy().tobytes())
    print(seen.hexdigest(), random.random(), torch.rand(()).item())

if __name__ == "__main__":
    main()
"""


@pytest.mark.long  # tests/integration/programs starts some thirty programs so, and compares them with their twins
@pytest.mark.torch
@pytest.mark.situation("PROBE=1 or all, a job beside its undisturbed twin", "losses and weights bit-identical")
def test_a_planned_start_changes_no_bit_of_the_result(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINS)

    def train(**environ: str) -> tuple[int, str, str]:
        unset = plain()
        done = subprocess.run(
            [sys.executable, str(tmp_path / "train.py")],
            env={**unset, "PYTHONPATH": PATH_ENTRY, **environ},
            capture_output=True,
            text=True,
            timeout=110,
        )
        return done.returncode, done.stdout, done.stderr

    alone = train()
    recorded = train(PROBE="1", PROBE_TRACE_EVERY="1", PROBE_FLUSH_INTERVAL="0.01")
    with_workers = train(PROBE="all", PROBE_TRACE_EVERY="2")

    assert alone[0] == 0, alone[2]
    assert len(alone[1].split()) == 3
    assert recorded == alone
    assert with_workers == alone
