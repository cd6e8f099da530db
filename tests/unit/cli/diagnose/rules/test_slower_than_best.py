"""The job is slower than it was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from probe_agent.wire import Frame
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps
from .looking import Told, looked


def test_the_phase_that_grew_and_its_beginning_are_named(judged: Judged, steps: Steps) -> None:
    slow = steps(
        400, duration=lambda step: 0.1 if step < 240 else 0.15, data_wait=lambda step: 0.001 if step < 240 else 0.051
    )

    (found,) = judged("slower-than-best", {"python.steps": slow})

    assert "50 % longer" in found.sentence
    assert "data_wait" in found.sentence
    assert found.since_step == 240
    assert "grows" not in found.sentence


@pytest.mark.parametrize(("optimizer", "is_alike"), [(0.027, True), (0.0205, False)])
def test_all_phases_that_take_longer_alike_are_the_machines(
    judged: Judged, steps: Steps, optimizer: float, is_alike: bool
) -> None:
    def since(before: float, after: float) -> Any:
        return lambda step: before if step < 240 else after

    slow = steps(
        400, duration=since(0.1, 0.135), forward=since(0.03, 0.04), backward=since(0.045, 0.061),
        optimizer=since(0.02, optimizer),
    )  # fmt: skip

    (found,) = judged("slower-than-best", {"python.steps": slow})

    assert ("all phases alike" in found.sentence) is is_alike
    assert (found.certainty is Certainty.POSSIBLE) is is_alike
    assert found.advice[0].startswith("look at the machine") is is_alike


def test_steps_that_take_longer_and_longer_are_said_to_grow(judged: Judged, steps: Steps) -> None:
    """A graph that is never cut: backward goes through all steps so far."""
    longer = steps(160, duration=lambda step: 0.02 + 0.002 * step, backward=lambda step: 0.01 + 0.002 * step)

    (found,) = judged("slower-than-best", {"python.steps": longer})

    assert found.sentence.endswith("most of it in backward, and grows with each step")
    assert "detach()" in found.advice[0]


def test_a_steady_job_is_fine(judged: Judged, steps: Steps) -> None:
    assert judged("slower-than-best", {"python.steps": steps(400, duration=lambda step: 0.1 + 0.01 * (step % 3))}) == []


def test_steps_that_probe_has_traced_are_not_blamed_on_the_job(judged: Judged, steps: Steps) -> None:
    columns = {"duration": lambda step: 0.1 if step < 240 else 0.3, "traced": lambda step: 240 <= step < 370}

    assert judged("slower-than-best", {"python.steps": steps(400, **{**columns, "traced": False})})
    assert judged("slower-than-best", {"python.steps": steps(400, **columns)}) == []


@pytest.mark.parametrize(("length", "is_found"), [(64, True), (70, True), (112, False)])
def test_a_step_that_has_more_to_compute_may_take_longer(
    judged: Judged, steps: Steps, length: int, is_found: bool
) -> None:
    longer = steps(400, duration=lambda step: 0.1 if step < 240 else 0.18)
    usual = {"module": "Net", "stage": "forward", "phase": "train", "duration": 0.03}
    calls = [
        {"step": step, **usual, "input_shapes": f"32x{64 if step < 240 else length}, 32"} for step in range(0, 400, 10)
    ]

    found = judged("slower-than-best", {"python.steps": longer, "python.torch_trace": calls})

    assert bool(found) == is_found


def test_so_may_one_of_more_samples(judged: Judged, steps: Steps) -> None:
    columns = {"duration": lambda step: 0.1 if step < 240 else 0.18}

    assert judged("slower-than-best", {"python.steps": steps(400, **columns, batch_size=4)})
    more = steps(400, **columns, batch_size=lambda step: 4 if step < 240 else 8)
    assert judged("slower-than-best", {"python.steps": more}) == []


def test_inputs_that_grow_with_each_step_are_told_with_what_they_cost(judged: Judged, steps: Steps) -> None:
    """A history that is put before each batch."""
    longer = steps(160, duration=lambda step: 0.02 + 0.002 * step)
    usual = {"module": "Net", "stage": "forward", "phase": "train", "duration": 0.03}
    calls = [{"step": step, **usual, "input_shapes": f"32x{step + 10}"} for step in range(160)]

    (found,) = judged("slower-than-best", {"python.steps": longer, "python.torch_trace": calls})

    assert found.sentence.endswith("grows with each step, as the input of the model does")
    assert found.certainty is Certainty.POSSIBLE  # it may be a curriculum
    assert any(text.startswith("elements of the model's input: ") for text in found.evidence)


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("slower-than-best", {"python.steps": steps(60)})


def test_noise_and_a_host_that_took_the_cores_are_no_change_of_the_job(judged: Judged, steps: Steps) -> None:
    noisy = steps(400, duration=lambda step: 0.1 + 0.2 * (step * 7919 % 100) / 100 * (1 + step / 400))
    assert judged("slower-than-best", {"python.steps": noisy}) == []

    slow = steps(400, duration=lambda step: 0.1 if step < 250 else 0.2)
    starved = [
        {"step": 1, "ts": f"2026-01-01 00:00:{at:02}", "period": 1.0, "run_delay": 0.0 if at < 25 else 0.5}
        for at in range(40)
    ]
    assert judged("slower-than-best", {"python.steps": slow, "process.samples": starved}) == []

    contended = [{**row, "run_delay": 0.25 * (row["run_delay"] > 0)} for row in starved]
    slower = steps(400, duration=lambda step: 0.1 if step < 250 else 0.4)
    assert judged("slower-than-best", {"python.steps": slower})
    assert judged("slower-than-best", {"python.steps": slower, "process.samples": contended}) == []


def test_workers_that_wait_for_a_core_are_no_change_of_the_job(judged: Judged, steps: Steps) -> None:
    def told(pressure: float, children: int, phase: str = "data_wait") -> dict[str, Any]:
        late = steps(
            400,
            duration=lambda step: 0.1 if step < 240 else 0.2,
            **{phase: lambda step: 0.001 if step < 240 else 0.101},
        )
        return {
            "python.steps": late,
            "process.samples": [{"ts": f"2026-01-01 00:00:{at:02}", "num_children": children} for at in range(40)],
            "host.pressure": [
                {"ts": f"2026-01-01 00:00:{at:02}", "scope": "host", "cpu_some": pressure} for at in range(0, 60, 5)
            ],
        }

    assert judged("slower-than-best", told(0.95, children=2)) == []
    assert judged("slower-than-best", told(0.5, children=2))
    assert judged("slower-than-best", told(0.95, children=0))
    assert judged("slower-than-best", told(0.95, children=2, phase="other"))


def test_cores_that_were_taken_from_other_ranks_are_no_change_of_the_job(judged: Judged, steps: Steps) -> None:
    """Each of them waits for the one that waits for a core."""
    slow = {"python.steps": steps(400, duration=lambda step: 0.1 if step < 250 else 0.2)}
    starved = [
        {"step": 1, "ts": f"2026-01-01 00:00:{at:02}", "period": 1.0, "run_delay": 0.0 if at < 25 else 0.12}
        for at in range(40)
    ]

    assert judged("slower-than-best", slow, slow)
    assert judged("slower-than-best", {**slow, "process.samples": starved})
    assert judged("slower-than-best", slow, *[{**slow, "process.samples": starved}] * 2) == []


def test_steps_before_a_new_optimizer_are_those_of_another_model(judged: Judged, steps: Steps) -> None:
    """A sweep makes a larger one, with an optimizer of its own."""

    def larger(step: int) -> float:
        return 0.1 if step < 200 else 0.15

    def told(new_at: int) -> dict[str, Any]:
        return {"python.steps": steps(400, duration=larger, new_optimizer=lambda step: step == new_at)}

    assert judged("slower-than-best", told(0))
    assert judged("slower-than-best", told(200)) == []


def test_steps_before_a_resume_are_those_of_another_job(judged: Judged, steps: Steps) -> None:
    slow = steps(400, duration=lambda step: 0.01 if step < 200 else 0.15)
    resume = {"ts": slow[200]["ts"], "step": 200, "kind": "load", "has_optimizer": True, "error": None}

    assert judged("slower-than-best", {"python.steps": slow})
    assert judged("slower-than-best", {"python.steps": slow, "python.checkpoints": [resume]}) == []
    for other in ({"kind": "save"}, {"has_optimizer": False}, {"error": "RuntimeError: no"}):
        assert judged("slower-than-best", {"python.steps": slow, "python.checkpoints": [{**resume, **other}]})


def test_the_lines_of_now_are_told_unless_the_machine_has_changed() -> None:
    walks = Stack((Frame("sample", "/job/replay.py", 58, 1, "python", "    weights = [p for p in self.priorities]"),))
    trains = Stack((Frame("main", "/job/train.py", 50, 0, "python", "    loss.backward()"),))
    told = Told(stacks_of_0=[walks] * 8 + [trains], more_stacks_of_0=[walks] * 2)
    slower = Finding("", Certainty.LIKELY, cost_s=0.01, share=0.5, ranks=(0,), evidence=("seen",))
    alike = replace(
        slower, advice=("look at the machine, not at the code: clocks, temperature, other jobs on the host",)
    )

    (found,) = looked("slower-than-best", told, [slower])

    assert found.evidence == (
        "seen", "91 % of the stacks now: sample (replay.py:58): weights = [p for p in self.priorities]"
    )  # fmt: skip
    assert looked("slower-than-best", told, [alike]) == [alike]
