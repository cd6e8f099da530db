"""A device that computes later than the host, with a fake of torch's event API: the recorder never waits for it.

Tensors on it cannot be read, an event is incomplete until the test completes it, and asking for the time between
incomplete events, or for anything while a graph is captured, fails the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from probe_agent.recorder.steps.ends import MAX_ROWS_WAITING  # noqa: E402
from probe_agent.recorder.steps.module_spans import MAX_STEPS_WAITING  # noqa: E402

MIB = 1 << 20
#: What the device takes from one event to the next.
EVENT_MS = 3.0


class OnDevice(torch.Tensor):
    """A tensor on the device, as far as Python can see."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    @property
    def is_cpu(self) -> bool:
        return False

    def _waits(self, *args: object, **kwargs: object) -> None:
        raise AssertionError("the training waits for the device")

    item = tolist = cpu = numpy = __bool__ = __float__ = __int__ = _waits  # type: ignore[assignment]


class Cuda:
    """The part of torch.cuda that we use."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_come = 0
        #: Events on another stream, which has not come as far.
        self.late: set[int] = set()
        self.capturing = False
        #: The training thread's current device; the recorder's own thread has none.
        self.current = 0
        cuda = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.number = 0
                self.has_come = False
                self.enable_timing = enable_timing

            def record(self, stream: object = None) -> None:
                assert not cuda.capturing
                self.device = stream or torch.device("cuda", cuda.current)
                cuda.num_recorded += 1
                self.number = cuda.num_recorded

            def query(self) -> bool:
                assert self.number
                assert not cuda.capturing
                self.has_come = self.number <= cuda.num_come and self.number not in cuda.late
                return self.has_come

            def elapsed_time(self, end: Event) -> float:
                assert self.enable_timing
                assert end.enable_timing
                assert self.has_come
                assert end.has_come
                return (end.number - self.number) * EVENT_MS

            def synchronize(self) -> None:
                raise AssertionError("the training waits for the device")

        self.Event = Event

    def come(self) -> None:
        """Complete everything that the device was given."""
        self.num_come = self.num_recorded

    @contextmanager
    def capture(self) -> Iterator[None]:
        self.capturing = True
        try:
            yield
        finally:
            self.capturing = False

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_device(self) -> int:
        return self.current

    def current_stream(self, device: torch.device) -> object:
        return device  # of a stream, only its device matters here

    def memory_stats_as_nested_dict(self, device: int | None = None) -> dict[str, dict[str, dict[str, int]]]:
        """Return memory of the training thread's device; the others are empty."""
        of = self.current if device is None else device
        size = MIB if of == self.current else 0
        return {
            "allocated_bytes": {"all": {"current": 5 * size, "peak": 6 * size}},
            "reserved_bytes": {"all": {"current": 8 * size}},
        }


class Torch:
    """torch with a device; all else is its own."""

    Tensor = OnDevice

    def __init__(self) -> None:
        self.cuda = Cuda()
        #: Types of the pinned memory that values were copied into.
        self.types: list[object] = []

    def __getattr__(self, name: str) -> object:
        return getattr(torch, name)

    def empty(self, *args: object, pin_memory: bool, **kwargs: object) -> torch.Tensor:
        assert pin_memory
        self.types.append(kwargs["dtype"])
        return torch.empty(*args, **kwargs)


@pytest.fixture
def like() -> Torch:
    return Torch()


def train(net, num_steps, during=None):
    optimizer = torch.optim.SGD(net.parameters(), 0.0)
    for number in range(num_steps):
        optimizer.zero_grad()
        net(torch.ones(4, 8).as_subclass(OnDevice)).sum().backward()
        if during is not None:
            during(number)
        optimizer.step()


def forwards(it):
    return [row for row in it.trace if row["stage"] == "forward"]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


def test_device_times_and_losses_arrive_later_and_nothing_waits(recording, like):
    with recording(like=like, trace_every=1, trace_deep_every=1) as it:
        train(net(), 4)
        before = forwards(it), it.steps
        like.cuda.come()
        train(net(), 1)
        after = [row for row in forwards(it) if row["step"] < 4], it.steps[:3]

    assert before == ([], [])
    assert {row["module"]: row["device_duration"] for row in after[0]} == pytest.approx(
        {"Sequential": 0.015, "Sequential.0": 0.003, "Sequential.1": 0.003}
    )
    assert [row["step"] for row in after[1]] == [1, 2, 3]
    assert {row["device"] for row in after[0]} == {"cuda:0"}
    assert {(row["allocated"], row["reserved"]) for row in after[0]} == {(5.0, 8.0)}
    assert None not in {row["loss"] for row in after[1]}


def test_an_event_that_never_arrives_is_given_up_and_nothing_grows(recording, like):
    num_steps = MAX_ROWS_WAITING + 5
    with recording(like=like, trace_every=1, trace_deep_every=0) as it:
        train(net(), num_steps)
        given_up = {row["step"] for row in forwards(it)}
        without_loss = it.steps
        waiting = len(it.sources[2]._spans._waiting), len(it.recorder.ends._waiting)

    assert given_up == set(range(1, num_steps - MAX_STEPS_WAITING))
    assert {row["device_duration"] for row in forwards(it)} == {None}
    assert [row["step"] for row in without_loss] == [1, 2, 3, 4]
    assert {row["loss"] for row in without_loss} == {None}
    assert waiting == (MAX_STEPS_WAITING, MAX_ROWS_WAITING)
    assert len(it.steps) == num_steps - 1


def test_work_on_another_stream_is_waited_for_as_well(recording, like):
    with recording(like=like, trace_every=1, trace_deep_every=0) as it:
        train(net(), 2)
        recorded = like.cuda.num_recorded
        like.cuda.late = {2, 3}
        like.cuda.come()
        train(net(), 1)
        early = forwards(it)
        like.cuda.late = set()
        like.cuda.come()
        train(net(), 1)
        late = [row for row in forwards(it) if row["step"] == 1]

    assert recorded > 3
    assert early == []
    assert len(late) == 3
    assert None not in {row["device_duration"] for row in late}


def test_nothing_is_asked_of_the_device_while_a_graph_is_captured(recording, like):
    model = net()
    with recording(like=like, trace_every=1, trace_deep_every=1) as it:
        train(model, 3)
        with like.cuda.capture():
            recorded = like.cuda.num_recorded
            train(model, 3)
            assert like.cuda.num_recorded == recorded
        like.cuda.come()
        train(model, 3)
        like.cuda.come()
        train(model, 1)

    assert [row["step"] for row in it.steps] == list(range(1, 10))
    # In the first step of the capture the hooks are there already; those that begin in it have no module rows.
    times = {step: {row["device_duration"] for row in forwards(it) if row["step"] == step} for step in range(1, 9)}
    assert times[3] == {None}
    assert times[4] == times[5] == times[6] == set()
    assert not any(None in times[step] for step in (1, 2, 7, 8))


def test_a_capture_that_begins_in_the_middle_of_a_module_leaves_its_device_time_out(recording, like):
    class Captures(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with like.cuda.capture():
                return nn.functional.relu(x)

    class Begins(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            like.cuda.capturing = True
            return x + 1.0

    class Ends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            like.cuda.capturing = False
            return x + 1.0

    with recording(like=like, trace_every=1, trace_deep_every=0) as it:
        train(nn.Sequential(nn.Linear(8, 8), Captures(), Begins(), nn.Identity(), Ends()), 2)
        like.cuda.come()
        train(net(), 1)
        has_time = {row["module"]: row["device_duration"] is not None for row in forwards(it) if row["step"] == 1}

    whole = {"Sequential": True, "Sequential.0": True, "Sequential.1": True}
    assert has_time == {**whole, "Sequential.2": False, "Sequential.3": False, "Sequential.4": False}


def test_memory_is_that_of_the_training_threads_device(recording, like):
    """The recorder's thread has a current device of its own, cuda:0, whatever the rank uses."""
    like.cuda.current = 3
    with recording(like=like, trace_every=1, trace_deep_every=0) as it:
        train(net(), 3)
        like.cuda.come()
        train(net(), 1)
        rows = it.steps

    assert {(row["allocated"], row["reserved"]) for row in rows} == {(5.0, 8.0)}


def test_a_module_on_another_device_than_the_current_one_has_no_device_time(recording, like):
    like.cuda.current = 1  # the tensors of this fake are on cuda:0
    with recording(like=like, trace_every=1, trace_deep_every=0) as it:
        train(net(), 3)
        like.cuda.come()
        train(net(), 1)
        rows = forwards(it)

    assert rows
    assert {row["device_duration"] for row in rows} == {None}


def test_a_loss_is_copied_in_its_own_type(recording, like):
    """A conversion would allocate on the device."""
    with recording(like=like, trace_every=1, trace_deep_every=0):
        optimizer = torch.optim.SGD((model := net().bfloat16()).parameters(), 0.0)
        for _ in range(3):
            model(torch.ones(4, 8, dtype=torch.bfloat16).as_subclass(OnDevice)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    assert set(like.types) == {torch.bfloat16}


def test_a_job_that_stands_still_shows_its_last_steps(recording, like):
    """The recorder's thread writes them: no step ends that would."""
    with recording(like=like, trace_every=1, trace_deep_every=0) as it:
        train(net(), 4)
        before = forwards(it), it.steps
        like.cuda.come()
        it.recorder.step.started -= 10**10
        for source in it.sources:
            source.tick()
        after = {row["step"] for row in forwards(it)}, it.steps

    assert before == ([], [])
    assert after[0] == {1, 2, 3}
    assert [row["step"] for row in after[1]] == [1, 2, 3]
    assert None not in {row["loss"] for row in after[1]}
