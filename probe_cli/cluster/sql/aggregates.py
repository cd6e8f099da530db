"""Recipes for aggregates in parts: what each host computes, and what merges the parts.

Every recipe gives the value and the type of the aggregate over all rows, floats but for rounding. An aggregate without
a recipe is not split: its rows are fetched.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OF_VALUES", "RECIPES", "Recipe"]


@dataclass(frozen=True)
class Recipe:
    """`parts` are aggregates that hosts compute over {0} and {1}, the arguments; `merged` is over {a}, {b}, {c}."""

    parts: tuple[str, ...]
    merged: str
    num_arguments: int = 1


_COUNT = "CAST(coalesce(sum({a}), 0) AS BIGINT)"
_COUNT_IF = Recipe(("count_if({0})",), "CAST(sum({a}) AS HUGEINT)")  # of no rows at all, what DuckDB says of them
_MEAN = Recipe(("sum({0})", "count({0})"), "CAST(sum({a}) AS DOUBLE) / nullif(sum({b}), 0)")
#: Squares about the common mean: those about the mean of each part, and those of these means. Nothing large cancels.
_SQUARES = (
    "greatest(0, sum({a} * {c}) + list_sum(list_transform("
    "list({{'n': {a}, 'mean': {b}}}), lambda part: part.n * (part.mean - sum({a} * {b}) / sum({a})) ** 2)))"
)


def _itself(name: str) -> Recipe:
    return Recipe((f"{name}({{0}})",), f"{name}({{a}})")


def _extreme(name: str, of: str) -> Recipe:
    at = f"{of}(CASE WHEN {{0}} IS NOT NULL THEN {{1}} END)"
    return Recipe((f"{name}({{0}}, {{1}})", at), f"{name}({{a}}, {{b}})", 2)


def _variance(least: int, merged: str) -> Recipe:
    parts = ("count({0})", "avg({0})", "var_pop({0})")
    return Recipe(parts, f"CASE WHEN sum({{a}}) > {least} THEN {merged.replace('squares', _SQUARES)} END")


_VAR_SAMP = _variance(1, "squares / (sum({a}) - 1)")
_STDDEV_SAMP = _variance(1, "sqrt(squares / (sum({a}) - 1))")

RECIPES: dict[str, Recipe] = {
    "count_star": Recipe(("count_star()",), _COUNT, 0),
    "count": Recipe(("count({0})",), _COUNT),
    "count_if": _COUNT_IF,
    "countif": _COUNT_IF,
    "avg": _MEAN,
    "mean": _MEAN,
    "var_samp": _VAR_SAMP,
    "variance": _VAR_SAMP,
    "var_pop": _variance(0, "squares / sum({a})"),
    "stddev": _STDDEV_SAMP,
    "stddev_samp": _STDDEV_SAMP,
    "stddev_pop": _variance(0, "sqrt(squares / sum({a}))"),
    **{name: _itself(name) for name in ("sum", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor")},
    "any_value": _itself("any_value"),
    "arg_max": _extreme("arg_max", "max"),
    "max_by": _extreme("arg_max", "max"),
    "arg_min": _extreme("arg_min", "min"),
    "min_by": _extreme("arg_min", "min"),
}

#: Aggregates that may be DISTINCT, and one that always is: the hosts send each value once.
OF_VALUES = ("count", "sum", "avg", "mean", "min", "max", "approx_count_distinct")
