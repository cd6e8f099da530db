"""`--by env`: settings, versions, variables and code that are not the same on all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from probe_cli.cluster.compare.comparison import Comparison, Verdict
from probe_cli.cluster.compare.facts import Facts
from probe_cli.text import ranks_text, sum_up

__all__ = ["NEEDS", "compare"]

NEEDS = ("traits",)
#: What differs in a job that is in order.
EXPECTED = frozenset(
    {
        "CUDA_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "TORCHELASTIC_ERROR_FILE",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "torch.initial_seed()",
    }
)
_COLUMNS = {"kind": "VARCHAR", "name": "VARCHAR", "value": "VARCHAR", "ranks": "VARCHAR", "num_ranks": "BIGINT"}
#: Values longer than this are cut in the sentence.
MAX_VALUE = 40


def compare(facts: Sequence[Facts], num_steps: int) -> Comparison:
    """One row for each value of what differs, the most common first."""
    told = [fact for fact in facts if fact.traits]
    values: dict[tuple[str, str], dict[str | None, list[int]]] = defaultdict(lambda: defaultdict(list))
    names = sorted({(trait.kind, trait.name) for fact in told for trait in fact.traits})
    for fact in told:
        of_rank = {(trait.kind, trait.name): trait.value for trait in fact.traits}
        for key in names:
            values[key][of_rank.get(key)].append(fact.who.rank)
    rows: list[list[object]] = []
    sentences: list[str] = []
    odd: set[int] = set()
    for kind, name in names:
        by_value = sorted(values[kind, name].items(), key=lambda entry: (-len(entry[1]), str(entry[0])))
        if len(by_value) < 2 or name in EXPECTED:
            continue
        rows += [[kind, name, value, ranks_text(ranks, most=None), len(ranks)] for value, ranks in by_value]
        (usual, most), *others = by_value
        parts = [f"{_ranks(ranks)} {_has(value)}" for value, ranks in others]
        sentences.append(f"{kind} {name}: {', '.join(parts)}; {_ranks(most)} {_has(usual)}")
        odd.update(rank for _, ranks in others for rank in ranks)
    notes = [
        f"{fact.who} is not compared: {'; '.join(fact.gaps) or 'it told nothing'}" for fact in facts if not fact.traits
    ]
    verdict = _verdict(len(facts), len(told), len(names), sentences, sorted(odd))
    return Comparison(verdict, tuple(_COLUMNS), tuple(_COLUMNS.values()), rows, tuple(notes))


def _verdict(num_ranks: int, num_told: int, num_names: int, sentences: list[str], odd: list[int]) -> Verdict:
    if num_told < 2 or not num_names:
        text = f"not enough data: {num_told} of {num_ranks} ranks told their settings, and it takes two to compare"
        return Verdict("not enough data", text)
    if not sentences:
        text = (
            f"nothing differs: {num_names} settings, versions, variables and code hashes of {num_told} ranks compared"
        )
        return Verdict("nobody", text, evidence="traits")
    count = f"{len(sentences)} of {num_names} differ: "
    return Verdict("stands out", count + sum_up(sentences), ranks=tuple(odd), evidence="traits")


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks_text(ranks)}"


def _has(value: str | None) -> str:
    if value is None:
        return "without"
    return value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 1] + "…"
