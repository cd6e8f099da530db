"""Hooks that are added and never removed."""

from __future__ import annotations

from typing import Any

from .conftest import Judged


def row(place: str, items: int, added: int, kind: str = "hooks") -> dict[str, Any]:
    return {"place": place, "class": kind, "items": items, "added": added, "period": 0.4, "steps": 10}


def test_the_module_with_the_most_hooks_is_named(judged: Judged) -> None:
    rows = [row("`_forward_hooks` of module `a`", 40, 3), row("`_forward_hooks` of module `b`", 90, 9)]

    (found,) = judged("hooks-pile-up", {"python.containers": rows})

    assert found.where == "`_forward_hooks` of module `b`"
    assert "90 so far" in found.sentence
    assert "1 more such" in found.sentence


def test_hooks_that_stay_as_many_are_fine(judged: Judged) -> None:
    assert judged("hooks-pile-up", {"python.containers": [row("`_forward_hooks` of local `model`", 40, 0)]}) == []


def test_one_function_that_is_put_there_again_and_again_is_named(judged: Judged) -> None:
    rows = [row(f"`_forward_hooks` of module `{name}`", 12, 0, "hooks of one function") for name in "ab"]

    (found,) = judged("hooks-pile-up", {"python.containers": rows})

    assert found.sentence == "one function is a hook 12 times in `_forward_hooks` of module `a`, and 1 more such"


def test_few_hooks_and_other_containers_are_not_judged(judged: Judged) -> None:
    rows = [row("`_forward_hooks` of local `model`", 4, 2), row("local `losses` of main()", 400, 20, "list")]

    assert judged("hooks-pile-up", {"python.containers": rows}) == []
    assert judged("hooks-pile-up", {}) == []
