"""Some ranks get more to compute in each step than others."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps


def test_the_rank_with_more_samples_is_named(judged: Judged, steps: Steps) -> None:
    small, large = {"python.steps": steps(50, batch_size=16)}, {"python.steps": steps(50, batch_size=64)}

    (found,) = judged("uneven-batches", small, small, large)

    assert found.ranks == (2,)
    assert "64 samples a step, usual 16" in found.sentence


def test_longer_sequences_are_seen_by_the_shape_of_the_input(judged: Judged, steps: Steps) -> None:
    def rank(shape: str) -> dict[str, list[dict[str, object]]]:
        call = {"step": 1, "module": "GPT", "stage": "forward", "phase": "train", "input_shapes": shape}
        return {"python.steps": steps(50), "python.torch_trace": [call]}

    (found,) = judged("uneven-batches", rank("4x128, 4x128"), rank("4x512, 4x512"))

    assert found.ranks == (1,)


def test_large_batches_that_go_round_are_fine_though_the_sampled_steps_are_all_of_one_rank(
    judged: Judged, steps: Steps
) -> None:
    def rank(turn: int) -> dict[str, list[dict[str, object]]]:
        calls = [
            {
                "step": step,
                "module": "Net",
                "stage": "forward",
                "phase": "train",
                "input_shapes": "48x15" if turn else "156x15",
            }
            for step in range(0, 200, 20)
        ]
        own = steps(200, forward=lambda step: 0.09 if step % 4 == turn else 0.03)
        return {"python.steps": own, "python.torch_trace": calls}

    assert judged("uneven-batches", *map(rank, range(4))) == []


def test_equal_batches_and_stages_of_a_pipeline_are_fine(judged: Judged, steps: Steps) -> None:
    same = {"python.steps": steps(50, batch_size=16)}
    assert judged("uneven-batches", same, same) == []
    stages = [{"python.steps": steps(50, batch_size=16 * (1 + at)), "python.roles": [{"pp": at}]} for at in range(2)]
    with pytest.raises(NotApplicable):
        judged("uneven-batches", *stages)


def test_stages_of_a_pipeline_by_hand_are_known_by_their_sends(judged: Judged, steps: Steps) -> None:
    def stage(shape: str, peer: int | None) -> dict[str, list[dict[str, object]]]:
        call = {"step": 1, "module": "net", "stage": "forward", "phase": "train", "input_shapes": shape}
        sends = [] if peer is None else [{"step": 1, "op": "send", "group": "0", "seq": 0, "peer": peer}]
        return {"python.steps": steps(50), "python.torch_trace": [call], "python.collectives": sends}

    with pytest.raises(NotApplicable):
        judged("uneven-batches", stage("8x32", 1), stage("8x32x96", 0))
    assert judged("uneven-batches", stage("8x32", None), stage("8x32x96", None))


def test_one_rank_has_nothing_to_share_and_without_sizes_there_is_no_evidence(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NotApplicable):
        judged("uneven-batches", {"python.steps": steps(50, batch_size=16)})
    with pytest.raises(NoEvidence):
        judged("uneven-batches", {"python.steps": steps(50)}, {"python.steps": steps(50)})
