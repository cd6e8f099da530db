"""Language models that generate without a KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from probe_cli.diagnose.finding import NoEvidence, NotApplicable

from .conftest import Judged, Steps

WITHOUT, WITH = tuple(range(8, 40)), (8, *[1] * 31)


def rows(steps: Steps, lengths: Sequence[int], *, kind: str = "GPT2LMHeadModel", share: float = 0.6) -> dict[str, Any]:
    trace = {"stage": "forward", "phase": "generate", "module": f"{kind}.transformer.wte", "step": 20}
    return {
        "torch.modules": [{"module": kind, "class": kind}, {"module": f"{kind}.transformer.wte", "class": "Embedding"}],
        "python.torch_trace": [
            {**trace, "seq": seq, "input_shapes": f"16x{length}"} for seq, length in enumerate(lengths)
        ],
        "python.steps": steps(40, duration=0.5, generation=0.5 * share),
    }


def test_calls_that_get_the_whole_sequence_each_time_are_named(judged: Judged, steps: Steps) -> None:
    (found,) = judged("generation-without-cache", rows(steps, WITHOUT))

    assert found.where == "GPT2LMHeadModel.transformer.wte"
    assert found.share == pytest.approx(0.6)
    assert found.evidence[1].endswith(f"up to 39: {sum(WITHOUT[1:])} positions for 31 new tokens")


def test_one_token_at_a_time_is_fine_and_so_is_little_generation(judged: Judged, steps: Steps) -> None:
    assert judged("generation-without-cache", rows(steps, WITH)) == []
    assert judged("generation-without-cache", rows(steps, WITHOUT, share=0.1)) == []


def test_loops_of_the_jobs_own_and_jobs_that_do_not_generate_are_not_judged(judged: Judged, steps: Steps) -> None:
    for told in (rows(steps, WITHOUT, kind="NanoGPT"), rows(steps, WITHOUT, share=0.0)):
        with pytest.raises(NotApplicable):
            judged("generation-without-cache", told)


def test_where_no_sampled_step_has_generated_nothing_is_known(judged: Judged, steps: Steps) -> None:
    with pytest.raises(NoEvidence):
        judged("generation-without-cache", rows(steps, ()))
