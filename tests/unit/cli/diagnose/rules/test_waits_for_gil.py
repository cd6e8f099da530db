"""The training thread waits for the GIL that another thread of the job holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe_agent.wire import Frame, ThreadStack
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence, NotApplicable
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked

LAYER = Frame("forward", "/x/site-packages/torch/nn/modules/linear.py", 125, 0, "python", "    return F.linear(input)")
MAIN = Frame("main", "/job/train.py", 12, 1, "python", "    loss = model(x).sum()")
POLLS = Frame("watch", "/job/monitor.py", 7, 0, "python", "    while not done: n += 1")
MONITOR = ThreadStack("monitor", 2, 2, False, False, False, (POLLS,), holds_gil=True)
WAITS = Stack((LAYER, MAIN), holds_gil=False, state="sleeping", others=(MONITOR,))
COMPUTES = replace(WAITS, others=(replace(MONITOR, holds_gil=False),))
IN_BACKWARD = Frame("_engine_run_backward", "/x/torch/autograd/graph.py", 9, 0, "python", None)
BACKWARD = replace(WAITS, frames=(IN_BACKWARD, MAIN))
SUSPECTED = Finding("", Certainty.SUSPECTED, cost_s=0.1, ranks=(0,))


def told(waits: Stack, others: Stack = COMPUTES, *, slept: float = 0.7) -> Told:
    """Ten stacks, 0.1 s from each other, and as many more, of a thread that sleeps a part of the time."""
    stacks = [
        replace(stack, at=0.1 * number, cpu_s=(1 - slept) * 0.1 * number)
        for number, stack in enumerate(2 * ([waits] * 6 + [others] * 4))
    ]
    return Told(stacks_of_0=stacks[:10], more_stacks_of_0=stacks[10:])


def test_the_thread_that_holds_it_is_named_with_its_line() -> None:
    (found,) = looked("waits-for-gil", told(WAITS), [SUSPECTED])

    assert found.share == 0.6
    assert found.evidence[-1] == "held by thread monitor, 100 %: watch (monitor.py:7): while not done: n += 1"


@pytest.mark.parametrize(
    "stack",
    [
        replace(WAITS, holds_gil=True),
        COMPUTES,
        replace(WAITS, frames=(Frame("main", "/job/train.py", 9, 0, "python", "    x = feeder.ready.get()"), MAIN)),
        replace(WAITS, frames=(Frame("main", "/job/train.py", 9, 0, "python", "    time.sleep(0.1)"), MAIN)),
        replace(WAITS, frames=(Frame("wait", "/x/torch/distributed/distributed_c10d.py", 9, 0, "python", None), MAIN)),
        BACKWARD,
    ],
    ids=["holds it", "nobody holds it", "queue", "sleep", "collective", "backward"],
)
def test_other_waits_are_not_told(stack: Stack) -> None:
    assert looked("waits-for-gil", told(stack), [SUSPECTED]) == []


def test_no_more_is_told_than_the_thread_slept() -> None:
    (found,) = looked("waits-for-gil", told(WAITS, slept=0.3), [SUSPECTED])

    assert found.share == pytest.approx(0.3)
    assert looked("waits-for-gil", told(WAITS, slept=0.1), [SUSPECTED]) == []  # it computes without the GIL


def test_the_cpu_computes_backward_itself_and_a_device_does_it_while_the_thread_sleeps(
    judged: Judged, steps: Steps
) -> None:
    (on_cpu,) = judged("waits-for-gil", {"python.steps": steps(50, other=0.05)})
    (on_device,) = judged("waits-for-gil", {"python.steps": steps(50, other=0.05, reserved=900.0)})

    assert looked("waits-for-gil", told(BACKWARD), [replace(on_cpu, ranks=(0,))])
    assert looked("waits-for-gil", told(BACKWARD), [replace(on_device, ranks=(0,))]) == []
    assert looked("waits-for-gil", told(WAITS, BACKWARD, slept=0.5), [replace(on_device, ranks=(0,))]) == []


def test_servers_busy_hosts_and_jobs_that_have_just_begun_are_not_judged(judged: Judged, steps: Steps) -> None:
    def pressure(share: float) -> list[dict[str, object]]:
        return [{"scope": "host", "ts": steps(1)[0]["ts"], "cpu_some": share}]

    recorded = {"python.steps": steps(50, other=0.05, forward=0.0)}
    assert judged("waits-for-gil", {**recorded, "host.pressure": pressure(0.3)})
    with pytest.raises(NoEvidence, match="wait for a core"):
        judged("waits-for-gil", {**recorded, "host.pressure": pressure(0.95)})
    with pytest.raises(NotApplicable, match="server"):
        judged("waits-for-gil", {"python.steps": steps(50, other=0.05, backward=0.0)})
    with pytest.raises(NoEvidence, match="needed"):
        judged("waits-for-gil", {"python.steps": steps(5)})
