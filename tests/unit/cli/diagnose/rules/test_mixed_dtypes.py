"""Parameters of one model have types that do not belong together."""

from __future__ import annotations

import pytest

from probe_cli.diagnose.finding import NotApplicable

from .conftest import Judged


def model(dtype: str, **layers: str) -> dict[str, list[dict[str, object]]]:
    rows = [{"module": "GPT", "depth": 0, "dtype": dtype, "own_parameters": 0}]
    rows += [{"module": f"GPT.{name}", "depth": 1, "dtype": of, "own_parameters": 8} for name, of in layers.items()]
    return {"torch.modules": rows}


def test_double_parameters_among_others_are_named_with_their_layer(judged: Judged) -> None:
    (found,) = judged("mixed-dtypes", model("float32, float64", head="float64", body="float32"))

    assert found.where == "GPT.head"


def test_both_halves_in_one_model_are_named(judged: Judged) -> None:
    (found,) = judged("mixed-dtypes", model("bfloat16, float16", adapter="float16", body="bfloat16"))

    assert found.where == "GPT.adapter"


def test_norms_in_float32_counters_and_a_model_all_in_double_are_fine(judged: Judged) -> None:
    assert judged("mixed-dtypes", model("bfloat16, float32, int64", norm="float32", body="bfloat16")) == []
    assert judged("mixed-dtypes", model("float64", body="float64")) == []


def test_without_a_model_there_is_nothing_to_judge(judged: Judged) -> None:
    with pytest.raises(NotApplicable):
        judged("mixed-dtypes", {})
