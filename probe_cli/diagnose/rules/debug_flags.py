"""A debug setting was left on.

Each of them makes every step slower: kernels run one at a time, every operator is checked, or every collective is
logged. They are meant for finding a fault, not for a run. Some are variables of the launch command, others are switched
on in code: anomaly detection, torch's profiler. Deterministic algorithms may be wanted, and are told as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.rule import Limits, Row, Rule, of_each_rank

__all__ = ["RULE"]

SQL = "SELECT kind, name, value FROM process.env WHERE kind IN ('variable', 'setting', 'hardware')"
#: Name -> values that are harmless, and what it does.
FLAGS = {
    "CUDA_LAUNCH_BLOCKING": (("", "0"), "every kernel is waited for"),
    "TORCH_DISTRIBUTED_DEBUG": (("", "OFF", "INFO"), "every collective is checked against all other ranks"),
    "TORCH_SHOW_CPP_STACKTRACES": (("", "0"), "every warning and error walks the C++ stack"),
    "NCCL_DEBUG": (("", "VERSION", "WARN"), "NCCL logs what it does"),
    "TORCH_LOGS": (("",), "torch logs what it does"),
    "TORCH_COMPILE_DEBUG": (("", "0"), "every compilation writes its code to disk"),
    "PYTHONDEVMODE": (("", "0"), "Python checks its memory, and shows every warning"),
    "PYTHONMALLOC": (("", "pymalloc", "malloc"), "Python checks its memory"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": (("", "0"), "every tensor is allocated by the driver"),
    "NCCL_P2P_DISABLE": (("", "0"), "GPUs of a host exchange data by way of the host"),
    "NCCL_IB_DISABLE": (("", "0"), "hosts exchange data over sockets, not over InfiniBand"),
    "NCCL_SHM_DISABLE": (("", "0"), "ranks of a host exchange data over sockets"),
    "TORCH_NCCL_BLOCKING_WAIT": (("", "0"), "the host waits for every collective"),
    "TORCH_NCCL_DESYNC_DEBUG": (("", "0"), "every collective is reported to the job's store"),
    "TORCH_NCCL_ENABLE_TIMING": (("", "0"), "two events are recorded for every collective"),
    "TORCH_NCCL_NAN_CHECK": (("", "0"), "the input of every collective is searched for NaN"),
    "TORCH_NCCL_TRACE_CPP_STACK": (("", "0"), "every collective walks the C++ stack"),
    "TORCH_FR_CPP_STACK": (("", "0"), "every collective walks the C++ stack"),
    "CUDA_DEVICE_WAITS_ON_EXCEPTION": (("", "0"), "an error on the device stops the process there for a debugger"),
}
#: Setting -> what it does, and how to switch it off.
SETTINGS = {
    "torch.is_anomaly_enabled()": (
        "anomaly detection is on",
        "every operation of backward is checked, and forward keeps a stack for each of them",
        "torch.autograd.set_detect_anomaly(False)",
    ),
    "torch.autograd.profiler._is_profiler_enabled": (
        "torch's profiler is on",
        "every operator is recorded, and the records stay in memory until it stops",
        "torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=3, repeat=1))",
    ),
}
CHECKS_NAN = "torch.is_anomaly_check_nan_enabled()"
WANTED = {
    "torch.are_deterministic_algorithms_enabled()": (
        "deterministic algorithms are on",
        "slower kernels are chosen, and some operations raise",
        "torch.use_deterministic_algorithms(False)",
    ),
    "torch.backends.cudnn.deterministic": (
        "cuDNN is held to deterministic algorithms",
        "slower convolutions are chosen",
        "torch.backends.cudnn.deterministic = False",
    ),
}

Left = tuple[str, str, str]  # what was left on, what it does, how to switch it off


def judge(rows: Sequence[Row], limits: Limits) -> Iterable[Finding]:
    if not rows:
        raise NoEvidence("process.env has no rows: the recorder did not answer")
    is_on = {row["name"] for row in rows if row["kind"] == "setting" and str(row["value"]).lower() == "true"}
    if not any(row["name"] == "cuda devices" for row in rows):
        is_on -= {name for name in is_on if ".cudnn." in name}  # without a GPU in use they cost nothing
    if any(row["name"] == CHECKS_NAN and str(row["value"]).lower() == "false" for row in rows):
        is_on -= {"torch.is_anomaly_enabled()"}  # a compiler has it on while it traces a backward
    variables = {row["name"]: str(row["value"] or "") for row in rows if row["kind"] == "variable"}
    left_on = [
        (f"{name}={value}", FLAGS[name][1], f"unset {name}")
        for name, value in variables.items()
        if name in FLAGS and value.upper() not in FLAGS[name][0]
    ]
    left_on += [SETTINGS[name] for name in sorted(is_on & SETTINGS.keys())]
    wanted = [WANTED[name] for name in sorted(is_on & WANTED.keys())]
    if left_on:
        yield _finding("debug settings were left on", Certainty.LIKELY, left_on + wanted)
    elif wanted:
        yield _finding("settings that cost time are on", Certainty.POSSIBLE, wanted)


def _finding(head: str, certainty: Certainty, left_on: Sequence[Left]) -> Finding:
    return Finding(
        f"{head}: {', '.join(name for name, _, _ in left_on)}",
        certainty,
        share=None if certainty is Certainty.LIKELY else 0.0,
        evidence=tuple(f"{name}: {what}" for name, what, _ in left_on),
        advice=("leave them out unless a fault is being looked for",),
        try_first="; ".join(off for _, _, off in left_on),
    )


RULE = Rule("debug-flags", "set-up", "Were debug settings left on?", SQL, of_each_rank(judge), is_live=True)
