"""Folded stacks summed by the job's own functions."""

from __future__ import annotations

from probe_cli.render.hottest import OUTSIDE, by_function

LINEAR = "forward (/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py:134)"
FOLDED = f"""\
thread (1): MainThread;<module> (/home/me/train.py:90);train (/home/me/train.py:41);{LINEAR} 30
thread (1): MainThread;<module> (/home/me/train.py:90);train (/home/me/train.py:44) 10
thread (1): MainThread;<module> (/home/me/train.py:90);train (/home/me/train.py:47);save (/home/me/disk.py:3) 20
thread (2);_bootstrap (/usr/lib/python3.11/threading.py:1002);{LINEAR} 40
"""


def test_time_in_libraries_belongs_to_the_calling_function_of_the_job() -> None:
    sheet = by_function(FOLDED, rate=10, limit=10)

    assert sheet.columns == ("function", "file", "own", "total", "percent")
    assert sheet.rows == [
        ("train", "me/train.py", 4.0, 6.0, 40.0),
        (OUTSIDE, None, 4.0, 4.0, 40.0),
        ("save", "me/disk.py", 2.0, 2.0, 20.0),
        ("<module>", "me/train.py", 0.0, 6.0, 0.0),
    ]
