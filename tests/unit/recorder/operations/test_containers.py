"""`python.containers`: the size of the contents, and hooks that are one function."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from probe_agent.recorder.config import Settings
from probe_agent.recorder.operations import containers
from probe_agent.recorder.ring.table import MIB
from probe_agent.recorder.source import Recorder

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

VALUES = 1000
NUM = 300


@dataclass(eq=False)
class Demo:
    observation: Any
    action: int


class Compact:
    __slots__ = ("observation", "shared")

    def __init__(self, observation: Any, shared: Any) -> None:
        self.observation, self.shared = observation, shared


def listed(kept: Any) -> dict[str, dict[str, Any]]:
    """Return the rows about what `kept` holds, read on a separate thread as in a target."""
    assert kept
    found: list[dict[str, Any]] = []
    recorder = Recorder(Settings({}), lambda name, error: None)
    thread = threading.Thread(target=lambda: found.append(containers.answer(recorder, {})))
    thread.start()
    thread.join()
    rows = [dict(zip(found[0]["columns"], row, strict=True)) for row in found[0]["rows"]]
    return {row["place"]: row for row in rows}


def of(name: str, rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return next(row for place, row in rows.items() if place.startswith(f"[{name!r}] of "))


def expected(num: int = NUM) -> Any:
    return pytest.approx(num * VALUES * 4 / MIB, rel=0.01)


def test_tensors_of_objects_count_as_items_and_as_keys() -> None:
    kept = {
        "demos": [Demo(torch.zeros(VALUES), 1) for _ in range(NUM)],
        "priorities": {Demo(torch.zeros(VALUES), 1): 0.5 for _ in range(NUM)},
        "named": {str(at): torch.zeros(VALUES) for at in range(NUM)},
        "numbers": list(range(NUM)),
    }

    rows = listed(kept)

    for name in ("demos", "priorities", "named"):
        assert of(name, rows)["tensor_size"] == expected(), name
        assert of(name, rows)["tensors"] == NUM
    assert of("numbers", rows)["tensors"] == 0


def test_what_all_items_lead_to_does_not_grow_with_them() -> None:
    shared = torch.zeros(50 * VALUES)
    kept = {"compact": [Compact(torch.zeros(VALUES), shared) for _ in range(NUM)]}

    assert of("compact", listed(kept))["tensor_size"] == expected()


def test_a_view_counts_with_all_that_it_keeps() -> None:
    batches = [torch.zeros(8, VALUES) for _ in range(NUM)]
    buffer = torch.zeros(NUM, VALUES)
    kept = {
        "crops": [batch[0] for batch in batches],
        "pairs": [batch[at] for batch in batches[: NUM // 2] for at in range(2)],
        "buffer": list(buffer),
    }

    rows = listed(kept)

    assert of("crops", rows)["tensor_size"] == expected(8 * NUM)
    assert of("pairs", rows)["tensor_size"] == expected(4 * NUM)
    assert of("buffer", rows)["tensor_size"] == 0.0


class Long(list):  # type: ignore[type-arg]
    """A list of the job's."""


def test_of_a_long_item_only_a_part_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    get_referents = containers.gc.get_referents

    def counting(*objects: Any) -> list[Any]:
        found = get_referents(*objects)
        asked.append(len(found))
        return found

    monkeypatch.setattr(containers.gc, "get_referents", counting)
    long = [Long(range(50_000)), deque(range(50_000)), OrderedDict.fromkeys(range(50_000)), frozenset(range(50_000))]
    kept = {"long": long * 5}

    assert of("long", listed(kept))["items"] == 20
    assert max(asked, default=0) < 10_000


def test_hooks_of_one_function_are_told_from_others() -> None:
    def collected(name: str, module: Any, inputs: Any, output: Any) -> None: ...

    def other(at: int) -> Callable[..., None]:
        code = f"def hook{at}(module, inputs, output): return {at} and None"
        made: dict[str, Any] = {}
        exec(code, made)
        return made[f"hook{at}"]  # type: ignore[no-any-return]

    same, unlike = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    for at in range(10):
        same.register_forward_hook(functools.partial(collected, f"layer{at}"))
    for at in range(20):
        unlike.register_forward_hook(other(at))

    kinds = {row["class"]: row["items"] for row in listed({"same": same, "unlike": unlike}).values()}
    assert (kinds["hooks of one function"], kinds["hooks"]) == (10, 20)
