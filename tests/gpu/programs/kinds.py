"""One job of each kind, over a fixed number of steps: it records its own losses and a digest of its weights.

It stops at half of its steps until it is told that it is attached to, so that an attach falls into the run. One that
only infers has no optimizer, and goes on until it is told to stop.
"""

import contextlib
import os
import shutil

import torch
from control import Control, Net, deterministic, digest

STEPS, READY_AT, WAIT_AT = 120, 20, 60
BATCH = 64


def main():
    control = Control(__doc__, kind="eager")
    kind, device = control.args.kind, control.device
    if kind == "compiled" and not (shutil.which("cc") or shutil.which("gcc")):
        control.say("ready", missing="torch.compile needs a C compiler, and there is none")
        return
    deterministic()
    model = Net().to(device)
    if kind == "fsdp":
        shard(model, control)
    optimizer = None if kind == "inference" else torch.optim.Adam(model.parameters(), lr=1e-3)
    called = called_model(model, control)
    scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=kind == "amp")
    batches = [torch.randn(BATCH, 256, device=device) for _ in range(8)]
    losses = []

    def train(number):
        optimizer.zero_grad()
        with mixed(control):
            output = called(batches[number % 8])
        loss = torch.nn.functional.mse_loss(output.float(), batches[(number + 1) % 8])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())

    def infer(number):
        with torch.inference_mode():
            losses.append(called(batches[number % 8]).float().mean())

    take_step = infer if kind == "inference" else train
    for number in range(STEPS):
        take_step(number)
        if number == READY_AT:
            control.say("ready")
        if number == WAIT_AT:
            control.wait("attached")
    values = torch.stack(losses).tolist()
    control.say("trained", losses=values, digest=digest(model), **control.mib())
    while kind == "inference" and not control.told("stop"):
        infer(0)
        losses.clear()
    control.wait("stop")
    control.say("final")
    if kind == "fsdp":
        torch.distributed.destroy_process_group()


def called_model(model, control):
    """Return what the loop calls: the model, compiled, or replayed from CUDA graphs."""
    if control.args.kind == "compiled":
        return torch.compile(model)
    if control.args.kind == "graphs" and control.on_gpu:
        sample = torch.randn(BATCH, 256, device=control.device)
        return torch.cuda.make_graphed_callables(model, (sample,))
    return model


def mixed(control):
    if control.args.kind != "amp":
        return contextlib.nullcontext()
    return torch.autocast(control.device, torch.float16 if control.on_gpu else torch.bfloat16)


def shard(model, control):
    from torch.distributed.fsdp import fully_shard

    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    torch.distributed.init_process_group(
        "nccl" if control.on_gpu else "gloo",
        init_method=f"file://{control.args.folder}/store",
        rank=0,
        world_size=1,
        device_id=torch.device("cuda", 0) if control.on_gpu else None,
    )
    mesh = torch.distributed.device_mesh.init_device_mesh(control.device, (1,))
    for part in (model.first, model.middle, model.head):
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)


if __name__ == "__main__":
    main()
