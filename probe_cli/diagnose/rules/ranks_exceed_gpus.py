"""More ranks run on a host than it has GPUs, or two ranks use one GPU.

Every rank needs a GPU of its own: NCCL refuses two ranks on one device, and where each process calls `cuda:0` without
`set_device(local_rank)`, all of them share the first GPU, its memory and its time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NotApplicable
from probe_cli.diagnose.rule import Asked, Limits, Rule
from probe_cli.text import num_ranks

__all__ = ["RULE"]

SQL = """
SELECT 'gpu' AS kind, uuid, NULL::BIGINT AS process FROM gpu.samples GROUP BY uuid
UNION ALL BY NAME
SELECT DISTINCT 'process' AS kind, uuid, process FROM gpu.processes
UNION ALL BY NAME
SELECT DISTINCT 'device' AS kind, device AS uuid FROM torch.memory
"""


def judge(asked: Sequence[Asked], limits: Limits) -> Iterable[Finding]:
    if not any(one.rows for one in asked):
        raise NotApplicable("no GPU is known")
    for host in dict.fromkeys(one.host for one in asked):
        here = [one for one in asked if one.host == host and one.world_size > 1 and _uses_cuda(one)]
        gpus = {row["uuid"] for one in here for row in one.rows if row["kind"] == "gpu"}
        if gpus and len(here) > len(gpus):
            yield Finding(
                f"{len(here)} ranks run on {host}, which has {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}",
                Certainty.CERTAIN,
                ranks=tuple(sorted(one.rank for one in here)),
                where=host,
                evidence=(f"GPUs seen by NVML: {', '.join(sorted(gpus))}",),
                advice=(
                    "world size = hosts * GPUs of a host: torchrun --nnodes=… --nproc-per-node=gpu",
                    "see that CUDA_VISIBLE_DEVICES does not hide GPUs",
                ),
                try_first="torchrun --nproc-per-node=gpu train.py",
            )
            continue  # that ranks share a GPU follows from it
        rank_of = {one.pid: one.rank for one in here}
        uses = {(row["uuid"], row["process"]) for one in here for row in one.rows if row["kind"] == "process"}
        shared = Counter(uuid for uuid, process in uses if process in rank_of)
        for uuid in sorted(uuid for uuid, times in shared.items() if times > 1):
            ranks = sorted(rank_of[process] for of, process in uses if of == uuid and process in rank_of)
            yield Finding(
                f"{num_ranks(ranks)} use one GPU",
                Certainty.LIKELY,
                ranks=tuple(ranks),
                where=str(uuid),
                evidence=(f"all of them have memory on {uuid}",),
                advice=(
                    "call torch.cuda.set_device(local_rank) before anything touches CUDA",
                    "load checkpoints with map_location: what was saved on cuda:0 comes back there",
                ),
                try_first='torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))',
            )


def _uses_cuda(one: Asked) -> bool:
    """Whether the rank has memory on a GPU: ranks on the CPU need none."""
    return any(row["kind"] == "device" for row in one.rows)


RULE = Rule("ranks-exceed-gpus", "set-up", "Has each rank a GPU of its own?", SQL, judge, is_live=True)
