"""The job's streams stay the job's before, during and after an eval."""

from __future__ import annotations

import _thread
import io
import sys
import time

import pytest

from probe_agent.recorder.evaluate.capture import Capture, Sink


class Slotted:
    """A stream that takes no attributes."""

    __slots__ = ()

    def write(self, text: str) -> int:
        return len(text)

    def isatty(self) -> bool:
        return False


def test_only_the_routed_thread_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    monkeypatch.setattr(sys, "stdout", stream)
    capture, sink, done = Capture(), Sink(may_wait=True), _thread.allocate_lock()
    done.acquire()

    def code() -> None:
        capture.route(_thread.get_ident(), sink)
        print("captured")
        capture.unroute(_thread.get_ident())
        done.release()

    capture.begin()
    _thread.start_new_thread(code, ())
    print("the job's")
    assert done.acquire(timeout=10)
    capture.end()

    assert sink.take() == [("stdout", "captured\n")]
    assert stream.buffer.getvalue() == b"the job's\n"  # type: ignore[attr-defined]
    assert sys.stdout is stream
    assert vars(stream).keys().isdisjoint({"write", "isatty"})


def test_a_patch_of_the_job_over_ours_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "utf-8")
    monkeypatch.setattr(sys, "stderr", stream)
    capture = Capture()

    def theirs(text: str) -> int:
        return len(text)

    capture.begin()
    stream.write = theirs  # type: ignore[method-assign]
    capture.end()

    assert vars(stream)["write"] is theirs


@pytest.mark.parametrize("stream", [None, Slotted()])
def test_a_job_without_a_usable_stream_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(sys, "stdout", stream)
    capture = Capture()

    capture.begin()
    print("nowhere")
    capture.end()

    assert sys.stdout is stream


def test_a_sink_that_may_not_wait_counts_what_it_loses() -> None:
    sink = Sink(may_wait=False)

    for _ in range(4):
        sink.write("stdout", "x" * 500_000)

    assert sink.num_lost_chars == 500_000
    assert [(stream, len(text)) for stream, text in sink.take()] == [("stdout", 1_500_000)]


def test_a_blocking_sink_holds_the_writer_until_it_is_read() -> None:
    sink = Sink(may_wait=True)
    written: list[int] = []

    def write() -> None:
        for _ in range(10):
            written.append(sink.write("stdout", "x" * 500_000))

    _thread.start_new_thread(write, ())
    taken, deadline = 0, time.monotonic() + 10
    while taken < 5_000_000:
        taken += sum(len(text) for _, text in sink.take())
        assert time.monotonic() < deadline

    assert sink.num_lost_chars == 0
