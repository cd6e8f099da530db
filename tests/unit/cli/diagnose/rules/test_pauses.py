"""A few steps take so long that the job spends much of its time in them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from probe_agent.wire import Frame, ThreadStack
from probe_cli.diagnose.finding import Certainty, Finding, NoEvidence
from probe_cli.diagnose.sampling import Stack

from .conftest import Judged, Steps, Tables
from .looking import Answers, Told, looked


def test_a_policy_that_acts_between_updates_does_not_pause(judged: Judged, steps: Steps) -> None:
    rows = steps(
        400, duration=lambda step: 4.1 if step % 50 == 49 else 0.1, evaluation=lambda step: 4.0 * (step % 50 == 49)
    )
    call = {"module": "Agent", "stage": "forward", "step": 99}
    acts = [{**call, "phase": "eval", "input_shapes": "4x8"}] * 128
    trained = {**call, "phase": "train", "input_shapes": "128x8"}

    assert judged("pauses", {"python.steps": rows, "python.torch_trace": [*acts, trained]}) == []


def test_the_phase_and_the_distance_of_the_pauses_are_told(judged: Judged, steps: Steps) -> None:
    rows = steps(
        400, duration=lambda step: 4.1 if step % 50 == 49 else 0.1, evaluation=lambda step: 4.0 * (step % 50 == 49)
    )

    (found,) = judged("pauses", {"python.steps": rows})

    assert found.where == "evaluation"
    assert found.sentence.startswith("about every 50 steps a step takes 4.1 s instead of 100 ms")
    assert found.share == pytest.approx(0.44, abs=0.02)


def test_long_steps_in_a_row_come_at_no_distance(judged: Judged, steps: Steps) -> None:
    rows = steps(400, duration=lambda step: 4.1 if step > 390 else 0.1, other=lambda step: 4.0 * (step > 390))

    (found,) = judged("pauses", {"python.steps": rows})

    assert found.sentence.startswith("several times in a row a step takes 4.1 s instead of 100 ms")


def test_an_evaluation_is_meant_unless_it_takes_a_third_of_the_time(judged: Judged, steps: Steps) -> None:
    def rows(phase: str) -> list[dict[str, Any]]:
        return steps(
            400, duration=lambda step: 2.1 if step % 50 == 49 else 0.1, **{phase: lambda step: 2.0 * (step % 50 == 49)}
        )

    assert judged("pauses", {"python.steps": rows("evaluation")}) == []
    assert judged("pauses", {"python.steps": rows("generation")}) == []
    assert judged("pauses", {"python.steps": rows("forward")}) == [], "a longer episode"
    assert judged("pauses", {"python.steps": rows("other")})


@pytest.mark.parametrize(("phase", "certainty"), [("other", Certainty.LIKELY), ("evaluation", Certainty.POSSIBLE)])
def test_pauses_that_take_longer_each_time_are_told_of_evaluations_too(
    judged: Judged, steps: Steps, phase: str, certainty: Certainty
) -> None:
    def rows(longer: float) -> list[dict[str, Any]]:
        def pause(step: int) -> float:
            return (0.8 + longer * step) * (step % 40 == 39)

        return steps(400, duration=lambda step: 0.1 + pause(step), **{phase: pause})

    (found,) = judged("pauses", {"python.steps": rows(0.004)})

    assert found.certainty is certainty
    assert found.sentence.endswith(", longer each time")
    assert "the first took 1.2 s, the last 2.4 s" in " ".join(found.evidence)
    for still in judged("pauses", {"python.steps": rows(0.0005)}):  # by a fifth
        assert "longer each time" not in still.sentence
        assert phase == "other"


@pytest.mark.parametrize(
    ("backward", "longer", "is_told"), [(0.02, 0.004, True), (0.5, 0.004, False), (0.02, 0.0, False)]
)
def test_what_grows_before_the_model_is_called_is_no_longer_input(
    judged: Judged, steps: Steps, backward: float, longer: float, is_told: bool
) -> None:
    """Its time is in forward, as the model was last seen before it; backward of a longer input is longer, too."""

    def rest(step: int) -> float:
        return (0.8 + longer * step) * (step % 40 == 39)

    rows = steps(
        400,
        duration=lambda step: 0.1 + rest(step),
        forward=lambda step: 0.05 + (1 - backward) * rest(step),
        backward=lambda step: 0.03 + backward * rest(step) * (backward > 0.1),
    )

    found = judged("pauses", {"python.steps": rows})

    assert [one.sentence.partition(", most of it in ")[2] for one in found] == [
        "forward, before the model is called: 30 % of the time, longer each time"
    ] * is_told


def test_a_single_long_step_and_long_steps_in_all_phases_are_fine(judged: Judged, steps: Steps) -> None:
    once = steps(400, duration=lambda step: 9.1 if step == 200 else 0.1, other=lambda step: 9.0 * (step == 200))
    starved = steps(
        400,
        duration=lambda step: 2.1 if step % 50 == 49 else 0.1,
        forward=lambda step: 1.0 if step % 50 == 49 else 0.03,
        backward=lambda step: 1.0 if step % 50 == 49 else 0.05,
    )

    assert judged("pauses", {"python.steps": once}) == []
    assert judged("pauses", {"python.steps": starved}) == []


@pytest.mark.parametrize(
    ("cpu", "evaluation", "is_told"), [(0.1, 0.0, True), (1.0, 0.0, False), (0.5, 0.0, False), (0.1, 0.3, False)]
)
def test_a_forward_in_which_the_thread_sleeps_is_told(
    judged: Judged, steps: Steps, cpu: float, evaluation: float, is_told: bool
) -> None:
    """`cpu` is what the training thread uses a second meanwhile; with an evaluation, it is a rollout."""
    rows = steps(
        400,
        duration=lambda step: 2.1 if step % 50 == 49 else 0.1,
        forward=lambda step: 2.0 - evaluation if step % 50 == 49 else 0.03,
        evaluation=lambda step: evaluation * (step % 50 == 49),
    )
    began = rows[0]["ts"]
    elapsed, is_long = 0.0, set()
    for row in rows:
        elapsed += row["duration"]
        row["ts"] = began + timedelta(seconds=elapsed)
        is_long.update(range(int(elapsed - row["duration"]) + 1, int(elapsed) + 1) if row["duration"] > 1 else ())
    samples = [
        {"ts": began + timedelta(seconds=at), "period": 1.0, "cpu_training": cpu if at in is_long else 0.99}
        for at in range(1, int(elapsed))
    ]

    found = judged("pauses", {"python.steps": rows, "process.samples": [{**one, "run_delay": 0.0} for one in samples]})

    assert [one.where for one in found] == ["forward"] * is_told
    assert all("most of it in forward, where the thread sleeps: " in one.sentence for one in found)


def test_a_server_that_waits_for_requests_does_not_pause(judged: Judged, steps: Steps) -> None:
    def rows(backward: float) -> list[dict[str, Any]]:
        return steps(
            400,
            duration=lambda step: 2.1 if step % 50 == 49 else 0.1,
            other=lambda step: 2.0 * (step % 50 == 49),
            backward=lambda step: backward,
        )

    assert judged("pauses", {"python.steps": rows(0.0)}) == []
    assert judged("pauses", {"python.steps": rows(0.05)})


def test_few_steps_are_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("pauses", {"python.steps": steps(20)})
    with pytest.raises(NoEvidence):
        judged("pauses", {})


def test_a_rank_that_waits_for_one_that_pauses_does_not_pause(judged: Judged, steps: Steps) -> None:
    def rank(phase: str, **columns: float) -> Tables:
        long = {phase: lambda step: 2.0 * (step % 50 == 49)}
        calls = [{"step": step, "op": "barrier", **columns} for step in range(49, 400, 50)]
        rows = steps(400, duration=lambda step: 2.1 if step % 50 == 49 else 0.1, **long)
        return {"python.steps": rows, "python.collectives": calls if columns else []}

    evaluates, saves, waits = rank("evaluation"), rank("other", wait=0.3), rank("other", wait=1.9)

    assert judged("pauses", evaluates, waits) == []
    assert [found.ranks for found in judged("pauses", saves, waits)] == [(0,)]
    assert [found.ranks for found in judged("pauses", waits, waits)] == [(0,), (1,)], "the exchange itself pauses"


GUARD = Frame("main", "/job/serve.py", 150, 0, "python", "        with guard, torch.inference_mode():")
FIT = Frame("fit", "/job/serve.py", 120, 0, "python", "    self.opt.step()")
LOCKED = Stack((GUARD,), False, "sleeping", (ThreadStack("refresher", 2, 2, False, False, False, (FIT,)),))
ANSWERS = Stack((replace(GUARD, lineno=151, source="    answer = model(batch)"),), False, "running")


def test_a_pause_that_is_seen_has_its_line_and_what_others_do_meanwhile() -> None:
    pause = Finding("", Certainty.LIKELY, share=0.5, where="forward", ranks=(0,), evidence=("4 of 169 steps",))

    (found,) = looked("pauses", Told(stacks_of_a_pause_of_0=[LOCKED] * 30 + [ANSWERS] * 10), [pause])

    assert found.where == "main (serve.py:150): with guard, torch.inference_mode():"
    assert found.evidence[0] == "4 of 169 steps"
    assert "75 % of 40 stacks just now: main (serve.py:150)" in found.evidence[1]
    assert found.evidence[2] == "thread refresher meanwhile, 100 %: fit (serve.py:120): self.opt.step()"


def test_a_thread_that_the_job_lets_sleep_is_told_with_the_line() -> None:
    sleeps = replace(LOCKED, frames=(Frame("run", "/job/serve.py", 107, 0, "python", "    time.sleep(self.pause)"),))
    pause = Finding("", Certainty.LIKELY, share=0.5, where="forward", ranks=(0,))

    (found,) = looked("pauses", Told(stacks_of_a_pause_of_0=[sleeps] * 20 + [ANSWERS] * 20), [pause])

    assert found.where == "run (serve.py:107): time.sleep(self.pause)"


@pytest.mark.parametrize("where", ["forward", "other"])
def test_a_pause_that_is_not_seen_stays_as_it_was(where: str) -> None:
    pause = Finding("", Certainty.LIKELY, share=0.5, where=where, ranks=(0,))

    assert looked("pauses", Told(stacks_of_a_pause_of_0=[ANSWERS] * 40), [pause]) == [pause]


def test_a_policy_that_acts_is_no_evaluation() -> None:
    pause = Finding("", Certainty.LIKELY, share=0.5, where="evaluation", ranks=(0,))
    calls = {"blocks": 12_000, "lasted": 2.5, "evaluated": 3, "forward": 0.004}

    assert looked("pauses", Answers([calls]), [pause]) == []
    for validates in ({**calls, "blocks": 90}, {**calls, "lasted": 40.0}, {**calls, "evaluated": 0}):
        assert looked("pauses", Answers([validates]), [pause]) == [pause]
