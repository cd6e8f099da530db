"""A job that inspects itself: `lifecycle_training.py KIND FOLDER [STEPS]`; KIND is eager, ddp or a backend.

Prints `ready` at step 5 and trains until FOLDER/stop exists, or for STEPS steps. Each loss goes to FOLDER/losses
bit for bit; the last line on stdout has the number of steps, a digest of the weights, and the state of the process
before and, if FOLDER/look was there, after.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch
from snapshot import snapshot
from torch import nn

import probe_agent

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
STEPS = int(sys.argv[3]) if len(sys.argv) > 3 else 0
RANK = int(os.environ.get("RANK", "0"))


def look():
    files = sorted(path.name for path in FOLDER.iterdir() if path.name not in ("look", "losses"))
    return {**snapshot(), "files": files}


def num_mappings():
    return len(open("/proc/self/maps").readlines())


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    inputs = torch.randn(512, 16)
    data = torch.utils.data.TensorDataset(inputs, inputs.square().sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(
        data,
        batch_size=32,
        shuffle=True,
        num_workers=int(KIND == "eager"),
        persistent_workers=KIND == "eager",
        generator=torch.Generator().manual_seed(8),
    )
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.ReLU(), nn.Linear(32, 1))
    if KIND == "ddp":
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    call = model if KIND in ("eager", "ddp") else torch.compile(model, backend=KIND)
    losses = (FOLDER / f"losses{RANK}").open("w")
    stop = torch.zeros(1)
    step, before, after = 0, None, None
    while not stop:
        for batch, target in loader:
            optimizer.zero_grad()
            with probe_agent.span("guess"):
                with probe_agent.span("model"):
                    output = call(batch)
                loss = nn.functional.mse_loss(output, target)
            loss.backward()
            optimizer.step()
            step += 1
            with probe_agent.span("log"):
                print(loss.item().hex(), file=losses)
            if step == 5:
                before = look(), num_mappings()
                print("ready", flush=True)
            if before and not after and (FOLDER / "look").exists():
                after = look(), num_mappings()
            if not STEPS:
                time.sleep(0.002)
            stop += step == STEPS if STEPS else (FOLDER / "stop").exists() and RANK == 0
            if KIND == "ddp":
                torch.distributed.all_reduce(stop)
            if stop:
                break
    weights = b"".join(bytes(weight.detach().view(torch.uint8).flatten().tolist()) for weight in model.parameters())
    digest = hashlib.sha256(weights).hexdigest()
    print(json.dumps({"steps": step, "weights": digest, "before": before, "after": after}), flush=True)
    if KIND == "ddp":
        # torch's own way out ends one such process in ten by std::terminate, with or without us.
        torch.distributed.destroy_process_group()
        os._exit(0)


main()
