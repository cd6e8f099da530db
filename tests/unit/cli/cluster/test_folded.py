"""Folded stacks by the job's own lines."""

from __future__ import annotations

import pytest

from probe_agent.wire import Frame
from probe_cli.cluster.folded import job_frame, job_lines

THREAD = "MainThread"
TRAIN = "main (/job/train.py:88)"


@pytest.mark.parametrize(
    ("called", "what"),
    [
        ("save (/x/site-packages/torch/serialization.py:900)", "torch.save"),
        ("quantile (/x/site-packages/numpy/lib/function_base.py:4)", "numpy.quantile"),
        (
            "_BaseDataLoaderIter.__next__ (/x/site-packages/torch/utils/data/dataloader.py:7)",
            "torch._BaseDataLoaderIter.__next__",
        ),
        ("Module._wrapped_call_impl (/x/site-packages/torch/nn/modules/module.py:17)", "main"),
        ("_exception_logger.<locals>.wrapper (/x/site-packages/torch/distributed/c10d_logger.py:8)", "main"),
        ("dumps (/usr/lib/python3.11/json/__init__.py:1)", "main"),
    ],
)
def test_a_line_is_told_with_what_it_calls_unless_that_is_a_wrapper(called: str, what: str) -> None:
    found = job_lines(f"{THREAD};{TRAIN};{called} 7\n")

    assert found == {(what, "train.py:88"): 7}


def test_the_innermost_line_of_the_job_counts_and_only_the_thread_of_the_script() -> None:
    call = "Module._call_impl (/x/site-packages/torch/nn/modules/module.py:1)"
    model = f"{THREAD};{TRAIN};{call};Net.forward (/job/net.py:5)"

    assert job_lines(f"{model} 3\nThread-1;{TRAIN} 4\n") == {("Net.forward", "net.py:5"): 3}


TORCH = Frame("__next__", "/x/site-packages/torch/utils/data/dataloader.py", 7, 0, "python", None)
OWN = Frame("Text.__iter__", "/job/corpus.py", 48, 2, "python", None)
#: Of multiprocessing.Value: a property made as text.
MADE = Frame("getvalue", "<string>", 7, 0, "python", None)


def test_the_innermost_frame_with_a_file_of_the_job_is_named() -> None:
    assert job_frame([MADE, OWN, TORCH]) == "__iter__ (corpus.py:48)"
    assert job_frame([TORCH, OWN]) == "__iter__ (corpus.py:48)"


def test_a_job_that_is_a_text_has_no_files() -> None:
    assert job_frame([TORCH, MADE]) == "getvalue (<string>:7)"
    assert job_frame([TORCH]) is None
