"""Loaders without a name are found by the last batch that the job got, and not kept."""

from __future__ import annotations

import time
import weakref

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    WeightedRandomSampler,
)

from probe_agent.recorder.operations import dataloaders  # noqa: E402

START_S = 0.1
NAMELESS = "unnamed: source of the newest batch"


class Squares(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(2) * index**2


def first_of(them: list[object]) -> object:
    return torch.stack(them)


def listed(it) -> list[dict[str, object]]:
    answer = dataloaders.answer(it.recorder, {})
    return [dict(zip(answer["columns"], row, strict=True)) for row in answer["rows"]]


def test_a_loader_without_a_name_is_found_by_its_batches(recording):
    with recording() as it:
        assert NAMELESS not in [row["place"] for row in listed(it)]
        for batch in DataLoader(Squares(), batch_size=2, shuffle=True, drop_last=True, collate_fn=first_of):
            [row] = [row for row in listed(it) if row["place"] == NAMELESS]
            assert batch.shape == (2, 2)

    shown = {name: row[name] for name in ("loader", "dataset", "batch_size", "num_workers", "sampler", "collate_fn")}
    assert shown == {
        "loader": "DataLoader",
        "dataset": "Squares",
        "batch_size": 2,
        "num_workers": 0,
        "sampler": "RandomSampler",
        "collate_fn": "first_of",
    }
    assert row["drop_last"] is True
    assert row["pin_memory"] is False


def test_its_workers_are_counted_and_it_is_not_kept_alive(recording):
    with recording() as it:
        for _ in DataLoader(Squares(), batch_size=4, num_workers=2, prefetch_factor=3):
            [row] = [row for row in listed(it) if row["place"] == NAMELESS]
        assert it.recorder.batches() is None

    assert (row["num_workers"], row["workers"], row["prefetch_factor"]) == (2, 2, 3)


@pytest.mark.parametrize("batch_size", [4, None])
def test_a_loader_with_a_name_is_listed_once(recording, batch_size):
    loader = DataLoader(Squares(), batch_size=batch_size)

    with recording() as it:
        batches = iter(loader)
        next(batches)
        iterator = it.recorder.batches()
        held = dataloaders._is_of(iterator, loader)
        other = dataloaders._is_of(iterator, DataLoader(Squares()))
        gone = weakref.ref(batches)
        del batches, iterator

    assert held
    assert not other
    assert gone() is None


def test_the_batches_of_a_pass_that_began_before_the_recorder_are_not_known(recording):
    loader = DataLoader(Squares(), batch_size=2)
    batches = iter(loader)

    def counted() -> object:
        return next(row["batches"] for row in listed(it) if "local `loader`" in str(row["place"]))

    with recording() as it:
        never_asked = counted()
        next(batches)
        goes_on = counted()

    assert (never_asked, goes_on) == (0, None)


class OwnBatches(BatchSampler):
    pass


@pytest.mark.parametrize(("of", "named"), [(BatchSampler, "RandomSampler"), (OwnBatches, "OwnBatches")])
def test_what_draws_the_samples_in_place_of_a_sampler_is_named(recording, of, named):
    loader = DataLoader(Squares(), batch_sampler=of(RandomSampler(Squares()), 4, drop_last=False))

    with recording() as it:
        [row] = [row for row in listed(it) if "local `loader`" in row["place"]]

    assert type(loader.sampler).__name__ == "SequentialSampler"
    assert (row["sampler"], row["batch_size"]) == (named, 4)


def test_the_part_of_the_data_that_a_sampler_gives_is_told(recording):
    sampler = DistributedSampler(Squares(), num_replicas=4, rank=3, shuffle=False)
    loader = DataLoader(Squares(), sampler=sampler)

    with recording() as it:
        [row] = [row for row in listed(it) if "local `loader`" in row["place"]]

    assert loader.sampler is sampler
    assert (row["sampler"], row["sampler_shuffles"], row["sampler_epoch"]) == ("DistributedSampler", False, 0)
    assert (row["sampler_replicas"], row["sampler_rank"]) == (4, 3)


def test_the_weights_of_a_sampler_and_its_draws_are_counted(recording):
    loader = DataLoader(Squares(), sampler=WeightedRandomSampler([0.5, 0.25, 0.25], num_samples=8))

    with recording() as it:
        [row] = [row for row in listed(it) if "local `loader`" in row["place"]]

    assert loader.batch_size == 1
    assert (row["sampler"], row["sampler_weights"], row["sampler_draws"]) == ("WeightedRandomSampler", 3, 8)


class SlowToStart(DataLoader):
    def _get_iterator(self):
        time.sleep(START_S)
        return super()._get_iterator()


def train(net, loader) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    for batch in loader:
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_the_start_of_an_iterator_is_part_of_the_wait(recording):
    net = torch.nn.Linear(2, 1)
    with recording(trace_every=1) as it:
        for _ in range(3):
            train(net, SlowToStart(Squares(), batch_size=4))

    assert [step["data_wait"] >= START_S for step in it.steps] == [False, True, False, True, False]
    assert all(step["other"] < START_S for step in it.steps)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_workers_that_a_loader_starts_are_counted(recording, persistent):
    net = torch.nn.Linear(2, 1)
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, persistent_workers=persistent)
    with recording() as it:
        train(net, DataLoader(Squares(), batch_size=4))
        for _ in range(3):
            train(net, loader)

    # Two steps for each pass; the first step of all has no row.
    assert [step["workers_started"] for step in it.steps] == [0, 2, 0, *([0] * 4 if persistent else [2, 0, 2, 0])]


@pytest.mark.parametrize("is_outside", [True, False])
def test_the_start_of_an_iterator_for_an_evaluation_is_part_of_that(recording, is_outside):
    net = torch.nn.Linear(2, 1)
    with recording(trace_every=1) as it:
        train(net, DataLoader(Squares(), batch_size=4))
        with torch.set_grad_enabled(not is_outside):
            for batch in SlowToStart(Squares(), batch_size=2):
                with torch.no_grad():
                    net(batch)
        train(net, DataLoader(Squares(), batch_size=4))

    assert [step["evaluation"] >= START_S for step in it.steps] == [False, True, False]
    assert all(step["data_wait"] < START_S for step in it.steps)


def test_a_failure_of_ours_at_the_start_of_an_iterator_stays_out_of_the_job(recording, monkeypatch):
    net = torch.nn.Linear(2, 1)
    with recording(trace_every=1) as it:
        train(net, DataLoader(Squares(), batch_size=4))
        monkeypatch.setattr(it.recorder.step, "blocks", None)  # what our code goes through
        iterator = iter(DataLoader(Squares(), batch_size=4))
        monkeypatch.undo()
        assert [batch.shape for batch in iterator] == [(4, 2), (4, 2)]
        assert [row["source"] for row in it.rows("probe.errors")] == ["data_wait"]
        it.failures._buffer.rows.clear()


def test_passes_over_a_loader_are_counted_with_their_ends(recording):
    net = torch.nn.Linear(2, 1)
    whole, first = DataLoader(Squares(), batch_size=4), DataLoader(Squares(), batch_size=4)
    with recording(trace_every=1) as it:
        train(net, whole)
        for _ in range(3):
            train(net, [next(iter(first))])
            train(net, whole)
        counted = [it.recorder.seen.passes.of(loader) for loader in (whole, first)]

    assert [(one.begun, one.whole, one.batches) for one in counted] == [(3, 3, 6), (3, 0, 3)]


def test_passes_of_a_loop_that_does_not_train_are_not_counted(recording):
    net, loader = torch.nn.Linear(2, 1), DataLoader(Squares(), batch_size=4)
    with recording(trace_every=1) as it:
        for _ in range(3):
            for batch in loader:
                with torch.no_grad():
                    net(batch)
        counted = it.recorder.seen.passes.of(loader)

    assert (counted.begun, counted.whole, counted.batches) == (0, 0, 0)
