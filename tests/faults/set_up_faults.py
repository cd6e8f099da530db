"""Jobs that were started with what does not belong into a run."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from faults.gallery import fault, mlp, regression, train
from faults.ranks import join, train_together


@fault("debug-flags", CUDA_LAUNCH_BLOCKING="1")
def kernels_one_at_a_time(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("debug-flags", TORCH_DISTRIBUTED_DEBUG="DETAIL")
def every_collective_checked(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("debug-flags", TORCH_SHOW_CPP_STACKTRACES="1", NCCL_DEBUG="INFO")
def stacks_and_logs_of_the_native_code(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("debug-flags")
def anomaly_detection_switched_on_in_code(healthy: bool) -> None:
    torch.autograd.set_detect_anomaly(not healthy)
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("debug-flags")
def a_profiler_that_never_stops(healthy: bool) -> None:
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    if not healthy:
        profiler.start()
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression(), pause_s=0.05)


@fault("debug-flags")
def algorithms_held_to_be_deterministic(healthy: bool) -> None:
    torch.use_deterministic_algorithms(not healthy, warn_only=True)
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("mixed-dtypes")
def a_scale_made_of_numbers_of_numpy(healthy: bool) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()
            scale = np.ones(64)
            self.scale = nn.Parameter(torch.tensor(scale.astype("float32") if healthy else scale))

        def forward(self, inputs: Tensor) -> Tensor:
            output: Tensor = self.body((inputs * self.scale).float())
            return output

    model = Scaled()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("ranks-differ", num_ranks=2)
def a_rank_with_an_older_checkout(healthy: bool) -> None:
    rank = join()
    folder = tempfile.mkdtemp()
    code = "from torch import nn\n\n\nclass Head(nn.Linear):\n    pass\n"
    version = "" if healthy or rank == 0 else "\n\nVERSION = 1\n"
    Path(folder, "heads.py").write_text(code + version)
    sys.path.insert(0, folder)
    head = __import__("heads").Head(8, 1)

    def use(step: int) -> None:
        head(torch.ones(8))

    train_together(after_step=use)


@fault("ranks-differ", num_ranks=2)
def a_rank_with_other_transforms(healthy: bool) -> None:
    rank = join()
    folder = Path(tempfile.mkdtemp())
    scale = "1" if healthy or rank == 0 else "0.5"
    (folder / "transforms.py").write_text(f"def scaled(sample):\n    return {scale} * sample\n")
    (folder / "train.py").write_text("")
    sys.path.insert(0, str(folder))
    vars(sys.modules["__main__"])["__file__"] = str(folder / "train.py")  # as of a job that was started there
    scaled = __import__("transforms").scaled
    train_together(before_forward=lambda step: scaled(step))


@fault("ranks-differ", num_ranks=2)
def a_rank_with_another_precision(healthy: bool) -> None:
    if join() == 1 and not healthy:
        torch.set_float32_matmul_precision("high")
    train_together()


@fault("ranks-differ", num_ranks=2)
def a_rank_with_another_environment(healthy: bool) -> None:
    if join() == 1 and not healthy:
        os.environ["NCCL_ALGO"] = "Tree"
    train_together()


@fault("ranks-differ", num_ranks=3)
def a_rank_with_another_seed(healthy: bool) -> None:
    if join() == 2 and not healthy:
        torch.manual_seed(7)
    train_together(pause_s=0.05)
