"""Jobs that were started with what does not belong into a run."""

from __future__ import annotations

import torch

from faults.gallery import fault, mlp, regression, train


@fault("debug-flags", CUDA_LAUNCH_BLOCKING="1")
def kernels_one_at_a_time(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())


@fault("debug-flags", TORCH_DISTRIBUTED_DEBUG="DETAIL")
def every_collective_checked(healthy: bool) -> None:
    model = mlp()
    train(model, torch.optim.Adam(model.parameters()), regression())
