"""Spans that the job names: nested by thread and task, safe in every exit, and nothing without a recorder."""

from __future__ import annotations

import asyncio
import sys
import threading
from time import perf_counter_ns, sleep

import pytest
import torch

import probe_agent
from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.hooks import phases, spans
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.source import Recorder


class Job:
    """A recorder without rings."""

    def __init__(self) -> None:
        self.errors = RowBuffer(Errors)
        self.recorder = Recorder(Settings({}), Failures(self.errors).record)
        self.source = spans.Source(self.recorder)

    def rows(self):
        buffer = self.recorder.buffers["python.spans"]
        texts = {number: text for text, number in buffer._numbers.items()}
        rows = [dict(zip([c.name for c in spans.Spans.columns], row, strict=True)) for row in buffer.rows]
        return [{**row, **{name: texts[row[name]] for name in ("name", "path", "error")}} for row in rows]


@pytest.fixture
def job():
    it = Job()
    it.source.start()
    yield it
    it.source.stop()
    assert not hasattr(sys, spans.REGISTRY)
    assert not it.errors.rows


def test_without_a_recorder_a_span_does_nothing():
    with probe_agent.span("rollout"):
        pass

    assert not hasattr(sys, spans.REGISTRY)


def test_a_span_inside_another_has_its_path_and_is_left_out_of_its_own_time(job):
    job.recorder.step.number = 7
    with probe_agent.span("rollout"):
        sleep(0.01)
        with probe_agent.span("score"):
            sleep(0.02)

    inner, outer = job.rows()

    assert (inner["path"], inner["depth"], inner["step"]) == ("rollout/score", 1, 7)
    assert (outer["path"], outer["depth"], outer["error"]) == ("rollout", 0, None)
    assert outer["self_duration"] == pytest.approx(outer["duration"] - inner["duration"], abs=2e-3)
    assert inner["self_duration"] == inner["duration"] >= 0.02


def test_an_exception_passes_and_is_named(job):
    with pytest.raises(ZeroDivisionError), probe_agent.span("reward"):
        _ = 1 / 0

    (row,) = job.rows()

    assert row["error"] == "ZeroDivisionError"


def test_threads_do_not_nest_in_each_other(job):
    def work():
        with probe_agent.span("beside"):
            pass

    with probe_agent.span("main"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert [row["path"] for row in job.rows()] == ["beside", "main"]
    assert len({row["tid"] for row in job.rows()}) == 2


def test_tasks_that_take_turns_keep_their_own_spans(job):
    async def work(name):
        with probe_agent.span(name):
            await asyncio.sleep(0.05)
            with probe_agent.span("inner"):
                await asyncio.sleep(0.05)

    async def both():
        with probe_agent.span("all"):
            await asyncio.gather(work("one"), work("two"))

    asyncio.run(both())

    assert sorted(row["path"] for row in job.rows()) == ["all", "all/one", "all/one/inner", "all/two", "all/two/inner"]
    everything = next(row for row in job.rows() if row["path"] == "all")
    assert 0 <= everything["self_duration"] < everything["duration"] / 2


def test_a_generator_may_leave_its_span_after_the_one_it_was_used_in(job):
    def batches():
        with probe_agent.span("batches"):
            yield 1

    using = batches()
    with probe_agent.span("using"):
        next(using)
    using.close()
    with probe_agent.span("later"):
        pass

    assert [row["path"] for row in job.rows()] == ["using", "using/batches", "later"]


def test_a_decorator_takes_functions_coroutines_and_generators(job):
    @probe_agent.span("plain")
    def plain(value):
        return value

    @probe_agent.span("coroutine")
    async def coroutine(value):
        await asyncio.sleep(0)
        return value

    @probe_agent.span("generator")
    def generator():
        got = yield 1
        return got

    one = generator()
    next(one)
    with pytest.raises(StopIteration, match="sent"):
        one.send("sent")

    assert (plain(3), asyncio.run(coroutine(4))) == (3, 4)
    assert plain.__name__ == "plain"
    assert [row["name"] for row in job.rows()] == ["generator", "plain", "coroutine"]


def test_what_a_span_cannot_decorate_raises_where_it_is_written():
    async def endless():
        yield 1

    with pytest.raises(TypeError, match="inside it"):
        probe_agent.span("endless")(endless)
    with pytest.raises(TypeError, match="needs a name"):
        probe_agent.span(endless)


def test_a_span_that_was_open_at_the_attach_has_no_row_and_those_inside_it_do():
    it = Job()
    with probe_agent.span("began before"):
        it.source.start()
        with probe_agent.span("began after"):
            pass
    it.source.stop()

    assert [row["path"] for row in it.rows()] == ["began after"]


def test_a_span_that_ends_after_the_detach_has_no_row():
    it = Job()
    it.source.start()
    with probe_agent.span("outlives the recorder"):
        it.source.stop()

    assert it.rows() == []


def test_the_number_of_names_is_limited(job):
    for number in range(spans.MAX_TEXTS + 5):
        with probe_agent.span(f"step {number}"):
            pass

    named = [row[2] for row in job.recorder.buffers["python.spans"].rows]
    assert len(set(named)) == spans.MAX_TEXTS + 1
    assert not named[-1]


def test_a_compiled_function_with_a_span_has_one_graph(job):
    def double(x):
        with probe_agent.span("double"):
            return x * 2

    compiled = torch.compile(double, fullgraph=True, backend="eager")

    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert job.rows() == []


def test_an_attach_and_a_detach_compile_nothing_anew():
    def halve(x):
        with probe_agent.span("halve"):
            return x / 2

    compiled = torch.compile(halve, fullgraph=True, backend="eager")
    compiled(torch.ones(2))
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]

    it = Job()
    it.source.start()
    compiled(torch.ones(2))
    it.source.stop()
    compiled(torch.ones(2))

    assert stats["unique_graphs"] == before


class Loop(Job):
    """A training loop whose steps are ended by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.step = self.recorder.step
        self.phases = phases.Source(self.recorder)
        self.phases.start()
        self.source.start()
        self.step.thread = threading.get_ident()
        self.step.is_training = True
        self.step.reset()

    def end(self) -> None:
        self.step.duration = (perf_counter_ns() - self.step.started) * 1e-9
        for end in self.step.ending:
            end()

    def stop(self) -> None:
        self.source.stop()
        self.phases.stop()


@pytest.fixture
def loop():
    it = Loop()
    yield it
    it.stop()


@pytest.mark.parametrize(("name", "phase"), [("rollout", "generation"), ("Validation", "evaluation"), ("reward", None)])
def test_the_name_of_a_phase_counts_as_that_phase(loop, name, phase):
    with probe_agent.span(name):
        sleep(0.02)
    loop.end()

    times = {"generation": loop.step.generation, "evaluation": loop.step.evaluation}
    assert {found for found, time in times.items() if time >= 20e6} == ({phase} if phase else set())
    assert loop.step.rollout == (phase == "generation")


def test_an_evaluation_inside_a_rollout_counts_once(loop):
    with probe_agent.span("rollout"):
        sleep(0.01)
        with torch.no_grad():
            torch.nn.Linear(2, 2)(torch.ones(2))
        with probe_agent.span("evaluate"):
            sleep(0.01)
    loop.end()

    (evaluated, rolled) = (row["duration"] for row in loop.rows())
    assert loop.step.evaluation * 1e-9 == pytest.approx(evaluated, rel=0.2)
    assert (loop.step.evaluation + loop.step.generation) * 1e-9 == pytest.approx(rolled, rel=0.1)


def test_a_rollout_that_goes_on_past_the_end_of_a_step_is_split(loop):
    with probe_agent.span("rollout"):
        sleep(0.01)
        loop.end()
        before = loop.step.generation
        loop.step.reset()
        sleep(0.01)
    loop.end()

    assert before >= 10e6
    assert loop.step.generation >= 10e6
