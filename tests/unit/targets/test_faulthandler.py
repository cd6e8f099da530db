"""faulthandler's text is parsed into frames."""

from __future__ import annotations

from probe_agent.targets.faulthandler import parse

DUMP = """Stack (most recent call first):
  File "/job/caf\\xe9.py", line 7 in wait
  File "/job/train.py", line 12 in step
  File "/job/train.py", line ??? in <module>
"""


def test_the_innermost_frame_is_at_depth_0() -> None:
    main = parse(DUMP)

    assert (main.thread, main.is_main) == ("MainThread", True)
    assert [(frame.depth, frame.func, frame.lineno) for frame in main.frames] == [
        (0, "wait", 7),
        (1, "step", 12),
        (2, "<module>", 0),
    ]


def test_names_of_files_are_read_as_they_are_written() -> None:
    assert parse(DUMP).frames[0].file == "/job/café.py"


def test_no_frames_and_an_empty_dump_are_no_error() -> None:
    assert parse("Stack (most recent call first):\n  <no Python frame>\n").frames == ()
    assert parse("").frames == ()
