"""What a stack is taken for: work that takes long, or something that a hung job waits for."""

from __future__ import annotations

from typing import Any

import pytest

from probe_agent.recorder.stall.activity import Activity, activity_of

LIBRARY = "/x/lib/python3.11"
TORCH = "/venv/lib/python3.11/site-packages/torch"
Frame = tuple[str, str]  # func, file; innermost first
TRAIN = [("train", "/job/train.py"), ("<module>", "/job/train.py")]
CASES: dict[str, tuple[list[Frame], str, str, str]] = {
    "the job's own code": ([("work", "/job/train.py"), *TRAIN], "python", "", "work"),
    "a function named evaluate": ([("evaluate", "/job/train.py"), *TRAIN], "evaluation", "", "evaluate"),
    "a library's evaluation loop": (
        [("wait", "/x/lib/python3.11/threading.py"), ("evaluate", "/x/site-packages/transformers/trainer.py"), *TRAIN],
        "evaluation",
        "",
        "train",
    ),
    "an all_reduce": (
        [("wait", f"{TORCH}/x.py"), ("all_reduce", f"{TORCH}/distributed/distributed_c10d.py"), *TRAIN],
        "collective",
        "",
        "train",
    ),
    "an all_reduce in an evaluation": (
        [("all_reduce", f"{TORCH}/distributed/distributed_c10d.py"), ("validate", "/job/eval.py"), *TRAIN],
        "collective",
        "evaluation",
        "validate",
    ),
    "a barrier inside dcp.save": (
        [
            ("barrier", f"{TORCH}/distributed/distributed_c10d.py"),
            ("save", f"{TORCH}/distributed/checkpoint/state_dict_saver.py"),
            *TRAIN,
        ],
        "save",
        "",
        "train",
    ),
    "a barrier in the job's own save": (
        [("barrier", f"{TORCH}/distributed/distributed_c10d.py"), ("save_checkpoint", "/job/io.py"), *TRAIN],
        "collective",
        "save",
        "save_checkpoint",
    ),
    "a loader's queue": (
        [
            ("get", "/x/lib/python3.11/queue.py"),
            ("_MultiProcessingDataLoaderIter._try_get_data", f"{TORCH}/utils/data/dataloader.py"),
            ("_BaseDataLoaderIter.__next__", f"{TORCH}/utils/data/dataloader.py"),
            *TRAIN,
        ],
        "data",
        "",
        "train",
    ),
    "the store of init_process_group": (
        [
            ("_create_c10d_store", f"{TORCH}/distributed/rendezvous.py"),
            ("init_process_group", f"{TORCH}/distributed/distributed_c10d.py"),
            *TRAIN,
        ],
        "init_process_group",
        "",
        "train",
    ),
    "Dynamo": ([("_compile", f"{TORCH}/_dynamo/convert_frame.py"), *TRAIN], "compile", "", "train"),
    "an import that torch.compile makes": (
        [("_find_and_load", "<frozen importlib._bootstrap>"), ("compile", f"{TORCH}/__init__.py"), *TRAIN],
        "compile",
        "",
        "train",
    ),
    "a compiled region at run time": (
        [("inner", f"{TORCH}/_functorch/aot.py"), ("_fn", f"{TORCH}/_dynamo/eval_frame.py"), *TRAIN],
        "python",
        "",
        "train",
    ),
    "an import": (
        [("<module>", f"{TORCH}/__init__.py"), ("_find_and_load", "<frozen importlib._bootstrap>"), *TRAIN],
        "import",
        "",
        "train",
    ),
    "a notebook between two cells": (
        [("select", f"{LIBRARY}/selectors.py"), ("BaseEventLoop._run_once", f"{LIBRARY}/asyncio/base_events.py")],
        "events",
        "",
        "",
    ),
    "a thread that has ended": ([], "ended", "", ""),
}


def seen(frames: list[Frame], phase: str = "", in_collective: bool = False) -> Activity:
    told: list[dict[str, Any]] = [{"func": func, "file": file, "lineno": 3} for func, file in frames]
    return activity_of(told, phase, in_collective)


@pytest.mark.parametrize("case", CASES)
def test_a_stack_is_named(case: str) -> None:
    frames, name, within, place = CASES[case]

    found = seen(frames)

    assert (found.name, found.within) == (name, within)
    assert found.place.partition(" ")[0] == place


@pytest.mark.parametrize(
    ("case", "phase", "in_collective", "moves", "is_work"),
    [
        ("the job's own code", "", False, True, False),
        ("the job's own code", "evaluation", False, False, True),
        ("the job's own code", "", True, False, False),
        ("an all_reduce", "", False, False, False),
        ("an all_reduce in an evaluation", "", False, False, False),
        ("an all_reduce in an evaluation", "", False, True, True),
        ("a barrier in the job's own save", "", False, False, True),
        ("a loader's queue", "", False, False, False),
        ("the store of init_process_group", "", False, False, False),
        ("Dynamo", "", False, False, True),
    ],
)
def test_only_what_takes_long_in_a_healthy_job_is_work(
    case: str, phase: str, in_collective: bool, moves: bool, is_work: bool
) -> None:
    found = seen(CASES[case][0], phase, in_collective)

    assert found.is_work(moves) == is_work


def test_a_collective_under_way_names_code_that_has_no_name() -> None:
    backward = [("_engine_run_backward", f"{TORCH}/autograd/graph.py"), *TRAIN]

    assert seen(backward, in_collective=True).name == "collective"
    assert seen(backward).name == "python"
