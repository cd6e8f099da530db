"""The ways to compare, one file each: which facts it needs, and the function that compares them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from probe_cli.cluster.compare.comparison import Comparison
from probe_cli.cluster.compare.facts import Facts

from . import collective, env, memory, module, step

__all__ = ["WAYS", "Way"]


@dataclass(frozen=True)
class Way:
    """`compare` puts the ranks side by side, over at most the number of steps that it is given."""

    needs: tuple[str, ...]
    compare: Callable[[Sequence[Facts], int], Comparison]


#: Each by its name behind `--by`.
WAYS: Mapping[str, Way] = {
    "collective": Way(collective.NEEDS, collective.compare),
    "env": Way(env.NEEDS, env.compare),
    "memory": Way(memory.NEEDS, memory.compare),
    "module": Way(module.NEEDS, module.compare),
    "phase": Way(step.NEEDS, step.compare_phases),
    "step": Way(step.NEEDS, step.compare),
}
