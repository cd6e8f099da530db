"""The job's data loaders and their options, for `torch.dataloaders`.

Reads attributes and never calls a dataset. Takes 1 to 10 ms on a thread of the recorder, microseconds of the GIL at a
time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..source import Recorder
from ..torch import inventory, loaded
from ..torch.seen import Passes

__all__ = ["answer"]

READS = True
COLUMNS = (
    "loader", "place", "dataset", "batch_size", "num_workers", "workers", "prefetch_factor", "pin_memory",
    "persistent_workers", "drop_last", "in_order", "timeout", "sampler", "collate_fn", "worker_init_fn",
    "start_method", "samples", "sampler_shuffles", "sampler_epoch", "sampler_replicas", "sampler_rank",
    "sampler_weights", "sampler_draws", "passes", "whole_passes", "batches",
)  # fmt: skip


def answer(recorder: Recorder, request: Mapping[str, Any]) -> dict[str, object]:
    """Return one row per loader."""
    found = recorder.find(inventory.LOADER)
    iterator = recorder.batches()
    rows = [
        [
            type(loader).__qualname__,
            place,
            *_row(vars(loader)),
            *_passes(recorder.seen.passes.of(loader), iterator is not None and _is_of(iterator, loader)),
        ]
        for loader, place in found
    ]
    if iterator is not None and not any(_is_of(iterator, loader) for loader, _ in found):
        rows.append(
            ["DataLoader", "unnamed: source of the newest batch", *_row(_loader_of(iterator)), None, None, None]
        )
    notes = [] if rows else [inventory.unseen("DataLoader")]
    return {"columns": COLUMNS, "rows": rows, "notes": notes}


def _is_of(iterator: object, loader: object) -> bool:
    """Return whether the loader made the iterator: they share one sampler object."""
    samplers = [vars(loader).get(name) for name in ("batch_sampler", "sampler")]
    drawn = vars(iterator).get("_index_sampler")
    return drawn is not None and any(sampler is drawn for sampler in samplers)


def _loader_of(iterator: object) -> dict[str, Any]:
    """Return the attributes that an iterator shares with the loader that made it, by the loader's names."""
    held = vars(iterator)
    drawn = held.get("_index_sampler")
    is_batched = bool(held.get("_auto_collation"))
    return {
        **{name[1:]: value for name, value in held.items()},
        "batch_sampler": drawn if is_batched else None,
        "sampler": getattr(drawn, "__dict__", {}).get("sampler") if is_batched else drawn,
        "_iterator": iterator,
    }


def _row(held: Mapping[str, Any]) -> list[object]:
    context = held.get("_DataLoader__multiprocessing_context")
    batch_size, sampler = _sampling(held)
    return [
        inventory.name_of(type(held.get("dataset"))),
        batch_size,
        held.get("num_workers"),
        _workers(held.get("_iterator")),
        held.get("prefetch_factor"),
        bool(held.get("pin_memory")),
        bool(held.get("persistent_workers")),
        bool(held.get("drop_last")),
        held.get("in_order"),
        held.get("timeout"),
        None if sampler is None else inventory.name_of(type(sampler)),
        _named(held.get("collate_fn")),
        _named(held.get("worker_init_fn")),
        None if context is None else getattr(context, "_name", None) or type(context).__name__,
        _num_samples(held.get("dataset")),
        *_of_sampler(sampler),
    ]


def _sampling(held: Mapping[str, Any]) -> tuple[object, object]:
    """Return the batch size and what draws the samples: the sampler, or the batch sampler that takes its place."""
    batch_size, drawn_by = held.get("batch_size"), held.get("batch_sampler")
    if batch_size is not None or drawn_by is None:
        return batch_size, held.get("sampler")
    # The loader has made a SequentialSampler that it never asks. Torch's own batch sampler asks another one.
    of_it = getattr(drawn_by, "__dict__", {})
    return of_it.get("batch_size"), of_it.get("sampler") if type(drawn_by).__name__ == "BatchSampler" else drawn_by


def _passes(passes: Passes, gave_newest: bool) -> tuple[int, int, int | None]:
    """Return the counts of a loader; the batches of a pass that began before the recorder are not counted."""
    return passes.begun, passes.whole, None if gave_newest and not passes.begun else passes.batches


def _num_samples(dataset: object) -> int | None:
    """Return the length of a data set that tells it without code of the job: a list, or tensors."""
    tensors = getattr(dataset, "__dict__", {}).get("tensors")
    if type(dataset) in (list, tuple):
        return len(dataset)  # type: ignore[arg-type]
    if type(dataset).__name__ == "TensorDataset" and tensors:
        return int(tensors[0].shape[0])
    return None


def _of_sampler(sampler: object) -> list[bool | int | None]:
    """Return whether a sampler such as DistributedSampler shuffles, the epoch that it was told last, into how many
    parts it cuts the data, and which of them it gives; of one that draws by weights, how many these are and how many
    samples it draws."""
    held = getattr(sampler, "__dict__", {})
    of = {"shuffle": bool, "epoch": int, "num_replicas": int, "rank": int}
    weights: Any = held.get("weights")
    draws, torch = held.get("num_samples"), loaded("torch")
    is_weighted = type(weights) is getattr(torch, "Tensor", None) and type(draws) is int
    return [
        *(held[name] if type(held.get(name)) is kind else None for name, kind in of.items()),
        *((int(weights.shape[0]), draws) if is_weighted else (None, None)),
    ]


def _workers(iterator: object) -> int | None:
    """Return the number of worker processes; only a loader with persistent workers knows it."""
    workers = getattr(iterator, "__dict__", {}).get("_workers")
    return None if workers is None else len(workers)


def _named(function: object) -> str | None:
    return None if function is None else inventory.name_of(function)
