"""The HTTP endpoints, one file a topic. Each file has the routers `open`, `read` or `control`, named after the role
that its endpoints need."""

from __future__ import annotations

from . import batch, dashboard, evaluate, host, job, memory, profile, query, recorder, stacks, targets, tensors

__all__ = ["CONTROL", "OPEN", "READ"]

#: Endpoints that tell nothing of a target: whoever reaches the server may ask them.
OPEN = (dashboard.open,)

#: Endpoints that change nothing in a target.
READ = (host.read, job.read, dashboard.read, targets.read, query.read, stacks.read, recorder.read, batch.read)
#: Endpoints that run code in a target or change it.
CONTROL = (evaluate.control, memory.control, profile.control, recorder.control, stacks.control, tensors.control)
