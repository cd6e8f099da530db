"""The faults of the jobs in `job.py`, with the verdicts that fit them, and what healthy jobs do that takes long."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .job import CULPRIT

__all__ = ["FAULTS", "HEALTHY", "PLANTED", "Fault", "Planted"]


@dataclass(frozen=True)
class Fault:
    """A fault, and the verdicts that fit it."""

    what: str
    causes: tuple[str, ...] = ("absent",)
    ranks: tuple[int, ...] = (CULPRIT,)
    states: tuple[str, ...] = ("hangs",)
    #: What the sentence must have.
    says: str = "rank 2 sleeps in for_ever (stuck.py:"
    #: Of a rank that is gone only a recorder that was in it before can tell.
    attach: tuple[str, ...] = ("after", "before")

    def is_told(self, state: str, cause: str, ranks: Collection[int], sentence: str) -> bool:
        """Return whether a verdict names the cause, somebody, and no innocent rank."""
        is_fit = state in self.states and cause in self.causes and self.says in sentence
        return is_fit and bool(ranks) and set(ranks) <= set(self.ranks)


@dataclass(frozen=True)
class Planted:
    """A fault that does not stop the job, the command that is asked about it, and what its first line must say."""

    what: str
    asks: str
    words: tuple[str, ...]

    def is_told(self, sentence: str) -> bool:
        """Return whether the line says what it must."""
        return all(word in sentence for word in self.words)


def _gone(what: str, says: str) -> Fault:
    return Fault(what, ("gone",), states=("hangs", "died"), says=says, attach=("before",))


FAULTS = {
    "sleep": Fault("rank 2 sleeps"),
    "first_step": Fault("rank 2 sleeps in the first step"),
    "lock": Fault(
        "rank 2 waits for a lock", says="shared is held by its thread keeper, which sleeps in for_ever (stuck.py:"
    ),
    "rlock": Fault(
        "rank 2 waits for an RLock", says="shared is held by its thread keeper, which sleeps in for_ever (stuck.py:"
    ),
    "pipe": Fault(
        "rank 2 reads a pipe that is never written", says="rank 2 reads a file, pipe or socket in read_pipe (stuck.py:"
    ),
    "loader": Fault("rank 2's data set hangs", says="called while it waits for its data loader"),
    "worker": Fault("rank 2's data loader workers hang", says="sleeps in for_ever (stuck.py:"),
    "worker_disk": Fault("rank 2's data loader workers wait in the kernel", says="waits uninterruptibly in the kernel"),
    "save": Fault("rank 2 is stuck in torch.save", says="rank 2 saves"),
    "disk": Fault("rank 2 waits in the kernel (state D)", says="rank 2 waits uninterruptibly in the kernel"),
    "gil": Fault("rank 2 holds the GIL in C", says="rank 2 keeps the GIL in native code in hold_gil (stuck.py:"),
    "spins": Fault("rank 2 is in an endless loop", says="rank 2 runs in spin (stuck.py:"),
    "stopped": Fault("rank 2 gets SIGSTOP", ("gone",), says="resume it with: kill -CONT"),
    # The others end of it, or do not: of those that have, only a recorder that was in them can tell.
    "destroy": Fault("rank 2 destroys its groups, and sleeps", ("absent", "left"), attach=("before",)),
    "swallowed": Fault(
        "rank 2 swallows an exception and calls a barrier", ("mismatch", "absent"), says="rank 2 calls barrier"
    ),
    "sizes": _gone("rank 2 calls all_reduce with another size", "the ranks differ in the sizes of a collective"),
    "operation": Fault("rank 2 calls all_gather", ("mismatch",), says="rank 2 calls all_gather"),
    "order": Fault(
        "ranks 0 and 2 call two groups in another order", ("cycle",), (0, CULPRIT), says="ranks 0,2 wait for each other"
    ),
    "send": Fault(
        "rank 2 sends, and rank 0 does not receive",
        ("no peer", "cycle", "absent"),
        (0, CULPRIT),
        says="rank 2 is in send",
    ),
    "receive": Fault(
        "rank 2 receives, and rank 0 does not send",
        ("no peer", "cycle", "absent"),
        (0, CULPRIT),
        says="rank 2 is in recv",
    ),
    "mesh_2d": Fault("rank 2 sleeps, on a mesh of 2 by 2"),
    "fsdp": Fault("rank 2 sleeps, FSDP2"),
    "pipeline": Fault("rank 2 sleeps, pipeline of sends and receives", ("no peer", "absent")),
    "batched": Fault("rank 2 sleeps, ring of batched sends and receives", ("no peer", "absent")),
    "waits_later": Fault("rank 2 sleeps, all_reduce with async_op"),
    "objects": Fault("rank 2 sleeps, all_gather_object"),
    "monitored": Fault("rank 2 sleeps, monitored_barrier"),
    "spawned": Fault("rank 2 sleeps, ranks of torch.multiprocessing.spawn"),
    "planned": Fault("rank 2 sleeps, ranks with PROBE=1"),
    "few": Fault(
        "rank 3 never starts", ("init",), (3,), ("unknown", "hangs"), "rank 3 has not come to init_process_group"
    ),
    "gone_store": Fault(
        "the host of the job's store does not answer",
        ("store",),
        (0, 1, CULPRIT),
        says="the job's store does not answer",
    ),
    "timed_out": Fault(
        "rank 2 sleeps until the others' calls time out",
        says="rank 2 sleeps in for_ever (stuck.py:",
        attach=("before",),
    ),
    "ended_by_launcher": Fault(
        "rank 2 sleeps until the others' calls time out, and the launcher ends it",
        states=("died",),
        says="rank 2 has not come to all_reduce",
        attach=("before",),
    ),
    "worker_dies": _gone("rank 2's data loader worker is killed", "DataLoader worker"),
    "exited": _gone("rank 2 exits in the middle", "exited with code 0"),
    "raised": _gone("rank 2 raises", "raised ValueError: a batch without labels"),
    "killed": _gone("rank 2 is killed (SIGKILL)", "was killed by SIGKILL"),
    "segv": _gone("rank 2 crashes (SIGSEGV)", "SIGSEGV"),
    "aborted": _gone("rank 2 aborts", "SIGABRT"),
    "memory": _gone("rank 2 is out of memory (ulimit -v)", "MemoryError"),
    "cgroup": _gone("rank 2 is killed by the OOM killer of its cgroup", "the OOM killer of its cgroup"),
}
#: What does not stop a job.
PLANTED = {
    "nan_forward": Planted("a layer of rank 2 makes NaN in forward", "nan", ("rank 2", "1 made NaN in forward")),
    "nan_backward": Planted("a layer of rank 2 makes NaN in backward", "nan", ("rank 2", "1 made NaN in backward")),
    "nan_data": Planted(
        "a batch of rank 2 gets NaN on its way to the model", "nan", ("rank 2", "input of Sequential has NaN")
    ),
    "leaks_graph": Planted("rank 2 keeps each loss with its graph", "leaks", ("job.py:", "keeps its autograd graph")),
    "leaks_objects": Planted("rank 2 keeps Python objects", "leaks", ("job.py:", "keeps")),
    "leaks_worker": Planted("a loader worker of rank 2 keeps objects", "worker", ("job.py:", "keeps")),
}
HEALTHY = {
    "none": "trains",
    "slow": "rank 2 takes 1.5 s longer a step",
    "evaluates": "evaluates for 25 s",
    "evaluates_alone": "rank 0 evaluates for 60 s, the others wait for it",
    "checkpoints": "rank 0 saves for 25 s",
    "checkpoints_behind": "rank 0 waits 60 s for a thread that saves",
    "compiles": "compiles for 25 s",
    "storage": "rank 2 waits 90 s for storage (state D)",
    "storage_pipe": "rank 2 reads from a pipe for 90 s",
    "storage_loader": "rank 2's loader worker waits 90 s for storage (state D)",
    "storage_retry": "rank 2's data set sleeps 90 s before it tries again",
}
