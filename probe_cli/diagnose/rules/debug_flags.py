"""A debug setting was left on.

Each of them makes every step slower: kernels run one at a time, every operator is checked, or every collective is
logged. They are meant for finding a fault, not for a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = "SELECT kind, name, value FROM process.env WHERE kind IN ('variable', 'setting')"
#: Name -> values that are harmless, and what it does.
FLAGS = {
    "CUDA_LAUNCH_BLOCKING": (("", "0"), "every kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": (("", "OFF", "INFO"), "every collective is checked against all other ranks"),
    "TORCH_SHOW_CPP_STACKTRACES": (("", "0"), "every warning and error walks the C++ stack"),
    "NCCL_DEBUG": (("", "VERSION", "WARN"), "NCCL logs what it does"),
    "TORCH_LOGS": (("",), "torch logs what it does"),
    "TORCH_COMPILE_DEBUG": (("", "0"), "every compilation writes its code to disk"),
    "PYTHONDEVMODE": (("",), "Python checks its memory"),
    "PYTHONMALLOC": (("", "pymalloc", "malloc"), "Python checks its memory"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (("", "0"), "every tensor is allocated by the driver"),
    "NCCL_P2P_DISABLE": (("", "0"), "GPUs of a host exchange data by way of the host"),
    "NCCL_IB_DISABLE": (("", "0"), "hosts exchange data over sockets, not over InfiniBand"),
    "NCCL_SHM_DISABLE": (("", "0"), "ranks of a host exchange data over sockets"),
}
SETTINGS = {
    "anomaly detection": "every operation of backward is checked, with a stack for each of forward",
    "anomaly_detection": "every operation of backward is checked, with a stack for each of forward",
}


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NoEvidence("process.env has no rows: the recorder did not answer")
    left_on = []
    for row in rows:
        value = str(row["value"] or "")
        if row["kind"] == "variable" and row["name"] in FLAGS and value.upper() not in FLAGS[row["name"]][0]:
            left_on.append((f"{row['name']}={value}", FLAGS[row["name"]][1]))
        elif row["kind"] == "setting" and row["name"] in SETTINGS and value.lower() in ("true", "1", "on"):
            left_on.append((f"{row['name']} is on", SETTINGS[row["name"]]))
    if left_on:
        yield Finding(
            f"debug settings were left on: {', '.join(name for name, _ in left_on)}",
            Certainty.LIKELY,
            evidence=tuple(f"{name}: {what}" for name, what in left_on),
            advice=("leave them out of the launch command unless a fault is being looked for",),
            try_first="unset " + " ".join(name.split("=")[0] for name, _ in left_on if "=" in name)
            if any("=" in name for name, _ in left_on)
            else "torch.autograd.set_detect_anomaly(False)",
        )


RULE = Rule("debug-flags", "set-up", "Were debug settings left on?", SQL, of_each_rank(judge), is_live=True)
