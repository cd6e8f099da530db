"""How an aggregate is computed in parts: what each host computes, and what puts the parts together.

Every recipe gives the same as the aggregate over all rows would, floats but for rounding. An aggregate without a
recipe is not split: its rows are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OVER_DISTINCT", "RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """`parts` are aggregates that hosts compute over {0}, {1}, the arguments; `merged` is over {a}, {b}, {c}, these.

    With `shifted`, {s} is what the middle part is on average, the same for all parts of a group.
    """

    parts: tuple[str, ...]
    merged: str
    num_arguments: int = 1
    shifted: bool = False


def _itself(name: str) -> Recipe:
    return Recipe((f"{name}({{0}})",), f"{name}({{a}})")


_COUNT = "CAST(coalesce(sum({a}), 0) AS BIGINT)"
_MEAN = Recipe(("sum({0})", "count({0})"), "CAST(sum({a}) AS DOUBLE) / nullif(sum({b}), 0)")
#: Squares about the common mean, from those about each part's own; taken about {s}, so that nothing large cancels.
_SQUARES = (
    "greatest(0, sum({a} * {c}) + sum({a} * ({b} - {s}) * ({b} - {s}))"
    " - sum({a} * ({b} - {s})) * sum({a} * ({b} - {s})) / sum({a}))"
)


def _variance(merged: str) -> Recipe:
    return Recipe(("count({0})", "avg({0})", "var_pop({0})"), merged.format(q=_SQUARES), shifted=True)


_VAR_SAMP = _variance("CASE WHEN sum({{a}}) > 1 THEN {q} / (sum({{a}}) - 1) END")
_VAR_POP = _variance("CASE WHEN sum({{a}}) > 0 THEN {q} / sum({{a}}) END")
_STDDEV_SAMP = _variance("CASE WHEN sum({{a}}) > 1 THEN sqrt({q} / (sum({{a}}) - 1)) END")
_STDDEV_POP = _variance("CASE WHEN sum({{a}}) > 0 THEN sqrt({q} / sum({{a}})) END")
_ARG_MAX = Recipe(("arg_max({0}, {1})", "max(CASE WHEN {0} IS NOT NULL THEN {1} END)"), "arg_max({a}, {b})", 2)
_ARG_MIN = Recipe(("arg_min({0}, {1})", "min(CASE WHEN {0} IS NOT NULL THEN {1} END)"), "arg_min({a}, {b})", 2)

RECIPES: dict[str, Recipe] = {
    "count_star": Recipe(("count_star()",), _COUNT, 0),
    "count": Recipe(("count({0})",), _COUNT),
    "count_if": Recipe(("count_if({0})",), "CAST(coalesce(sum({a}), 0) AS HUGEINT)"),
    "countif": Recipe(("count_if({0})",), "CAST(coalesce(sum({a}), 0) AS HUGEINT)"),
    "avg": _MEAN,
    "mean": _MEAN,
    "var_samp": _VAR_SAMP,
    "variance": _VAR_SAMP,
    "var_pop": _VAR_POP,
    "stddev": _STDDEV_SAMP,
    "stddev_samp": _STDDEV_SAMP,
    "stddev_pop": _STDDEV_POP,
    **{name: _itself(name) for name in ("sum", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")},
    "any_value": _itself("any_value"),
    "arg_max": _ARG_MAX,
    "max_by": _ARG_MAX,
    "arg_min": _ARG_MIN,
    "min_by": _ARG_MIN,
}

#: Those that are the same over each value once, so that the hosts need only send each value once.
OVER_DISTINCT = ("approx_count_distinct",)
