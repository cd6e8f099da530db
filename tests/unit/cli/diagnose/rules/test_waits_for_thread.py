"""The training thread waits for another thread or process of the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_agent.wire import Frame, ThreadStack
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

PYTHON = "/usr/lib/python3.11"
GETS = Frame("main", "/job/train.py", 112, 2, "python", "    x, y = feeder.ready.get()")
UNPACKS = Frame("draw", "/job/train.py", 51, 0, "python", "    x = self.day[name][:, lo:hi]")
IN_QUEUE = (
    Frame("wait", f"{PYTHON}/threading.py", 327, 0, "python", "    waiter.acquire()"),
    Frame("get", f"{PYTHON}/queue.py", 171, 1, "python", "    self.not_empty.wait()"),
)
FEEDER = ThreadStack("feeder", 2, 2, False, False, False, (UNPACKS,))
IDLE = ThreadStack("pool", 3, 3, False, False, False, IN_QUEUE)
WAITS = Stack((*IN_QUEUE, GETS), holds_gil=False, state="sleeping", others=(FEEDER, IDLE))
TRAINS = Stack((Frame("main", "/job/train.py", 115, 0, "python", "    loss.backward()"),), False, "running", (FEEDER,))
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.1, ranks=(0,))


def test_the_line_that_waits_is_named_and_what_the_others_do_meanwhile() -> None:
    told = Told(stacks_of_0=[WAITS] * 6 + [TRAINS] * 4, more_stacks_of_0=[WAITS] * 6 + [TRAINS] * 4)

    (found,) = looked("waits-for-thread", told, [SUSPECTED])

    assert (found.share, found.cost_s) == (0.6, pytest.approx(0.06))
    assert found.where.startswith("main (train.py:112)")
    assert found.evidence[1] == "thread feeder meanwhile, 100 %: draw (train.py:51): x = self.day[name][:, lo:hi]"
    assert not any("pool" in line for line in found.evidence)


@pytest.mark.parametrize(
    "frames",
    [
        (Frame("main", "/job/train.py", 9, 0, "python", "    batch = batches.get()  # a SimpleQueue waits in C"),),
        (
            Frame("_recv", f"{PYTHON}/multiprocessing/connection.py", 378, 0, "python", "    chunk = read(handle, n)"),
            Frame("main", "/job/train.py", 9, 1, "python", "    batch = pipe.recv()"),
        ),
        (
            Frame("wait", f"{PYTHON}/threading.py", 327, 0, "python", None),
            Frame("result", f"{PYTHON}/concurrent/futures/_base.py", 451, 1, "python", None),
            Frame("main", "/job/train.py", 9, 2, "python", "    batch = ahead.result()"),
        ),
    ],
)
def test_queues_pipes_and_futures_are_waited_for(frames: tuple[Frame, ...]) -> None:
    stacks = [replace(WAITS, frames=frames)] * 10

    assert looked("waits-for-thread", Told(stacks_of_0=stacks, more_stacks_of_0=stacks), [SUSPECTED])


@pytest.mark.parametrize(
    "stack",
    [
        replace(WAITS, state="running"),  # it was woken and waits for a core
        replace(
            WAITS, holds_gil=True, frames=(Frame("look", "/job/train.py", 9, 0, "python", "    of = sizes.get(1)"),)
        ),
        replace(
            WAITS,
            frames=(
                *IN_QUEUE,
                Frame("_try_get_data", "/x/site-packages/torch/utils/data/dataloader.py", 1, 2, "python", None),
                Frame("main", "/job/train.py", 9, 3, "python", "    for batch in loader:"),
            ),
        ),
    ],
    ids=["waits for a core", "looks into a dict", "waits for its data loader"],
)
def test_what_is_no_wait_for_a_thread_is_not_told(stack: Stack) -> None:
    assert looked("waits-for-thread", Told(stacks_of_0=[stack] * 20, more_stacks_of_0=[]), [SUSPECTED]) == []


def test_waits_now_and_then_are_no_finding() -> None:
    told = Told(stacks_of_0=[WAITS] + [TRAINS] * 9, more_stacks_of_0=[TRAINS] * 10)

    assert looked("waits-for-thread", told, [SUSPECTED]) == []


def test_on_a_host_whose_tasks_all_wait_for_a_core_nothing_is_judged(judged: Judged, steps: Steps) -> None:
    def told(pressure: float) -> dict[str, list[dict[str, object]]]:
        return {
            "python.steps": steps(600, other=0.05),
            "host.pressure": [
                {"ts": f"2026-01-01 00:00:{at:02}", "scope": "host", "cpu_some": pressure} for at in range(0, 60, 5)
            ],
        }

    assert judged("waits-for-thread", told(0.6))
    with pytest.raises(NoEvidence, match="wait for a core"):
        judged("waits-for-thread", told(0.97))


def test_a_server_that_waits_for_requests_is_not_judged(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable, match="requests"):
        judged("waits-for-thread", {"python.steps": steps(600, other=0.09, backward=None, optimizer=None)})


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("waits-for-thread", {"python.steps": steps(5)})
