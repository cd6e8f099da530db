"""The HTTP endpoints, one file a topic. Each file has the router `read`, `control` or both, named after the role that
its endpoints need."""

from __future__ import annotations

from . import evaluate, host, memory, profile, query, recorder, stacks, targets, tensors

__all__ = ["CONTROL", "READ"]

#: Endpoints that change nothing in a target.
READ = (host.read, targets.read, query.read, stacks.read, recorder.read)
#: Endpoints that run code in a target or change it.
CONTROL = (evaluate.control, memory.control, profile.control, recorder.control, stacks.control, tensors.control)
