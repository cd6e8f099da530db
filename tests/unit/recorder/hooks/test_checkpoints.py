"""Rows of python.checkpoints, and what is left of the hooks."""

from __future__ import annotations

import contextlib
import gc
import io
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from probe_agent.recorder.config import Settings
from probe_agent.recorder.guest.failures import Errors, Failures
from probe_agent.recorder.hooks.checkpoints import Checkpoints, Source
from probe_agent.recorder.ring.buffer import RowBuffer
from probe_agent.recorder.ring.table import NULL_FLOAT, NULL_INT
from probe_agent.recorder.source import Recorder


class Calls:
    """The source alone, with its rows by name."""

    def __init__(self) -> None:
        self.failures = Failures(RowBuffer(Errors))
        self.recorder = Recorder(Settings({}), self.failures.record)
        self.source = Source(self.recorder)

    @property
    def rows(self) -> list[dict[str, Any]]:
        buffer = self.recorder.buffers[Checkpoints.name]
        texts = {number: text for text, number in buffer._numbers.items()}
        named = []
        for row in buffer.rows:
            values = {}
            for column, value in zip(Checkpoints.columns, row, strict=True):
                shown: Any = texts[value] if column.kind == "text" else value  # type: ignore[index]
                values[column.name] = None if shown in (NULL_FLOAT, NULL_INT) else shown
            named.append(values)
        return named


@pytest.fixture
def calls() -> Iterator[Calls]:
    it = Calls()
    it.source.start()
    try:
        yield it
    finally:
        it.source.stop()
        assert not it.failures._buffer.rows, it.failures._buffer._numbers


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), 0.25)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model, optimizer


def test_a_save_and_a_load_say_what_is_in_the_file(calls: Calls, tmp_path: Path) -> None:
    model, optimizer = trained()
    path = tmp_path / "a.pt"

    torch.save({"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 7, "loss": 0.5}, path)
    loaded = torch.load(path)

    saved, read = calls.rows
    assert torch.equal(loaded["model"]["weight"], model.state_dict()["weight"])
    assert (saved["kind"], saved["function"], saved["path"]) == ("save", "torch.save", str(path))
    assert saved["size"] == path.stat().st_size / 2**20
    assert saved["free"] > 0
    for row in (saved, read):
        assert (row["has_model"], row["has_optimizer"], row["has_scheduler"]) == (True, True, False)
        assert (row["keys"], row["saved_step"], row["updates"]) == ("model, optim, epoch, loss", 7, 3)
        assert (row["lr"], row["loss"], row["error"]) == (0.25, 0.5, None)


def test_weights_alone_have_no_optimizer(calls: Calls) -> None:
    model, _ = trained()

    torch.save(model.state_dict(), io.BytesIO())

    (row,) = calls.rows
    assert (row["has_model"], row["has_optimizer"], row["path"], row["size"]) == (True, False, None, None)


def test_an_exception_is_freed_as_soon_as_the_job_lets_go_of_it(calls: Calls, tmp_path: Path) -> None:
    class Large:
        pass

    def fail() -> weakref.ref[Large]:
        large = Large()
        with contextlib.suppress(FileNotFoundError):
            torch.load(tmp_path / "b.pt")
        return weakref.ref(large)

    gc.disable()
    try:
        left = fail()
    finally:
        gc.enable()

    assert left() is None
    assert len(calls.rows) == 1


def test_an_exception_is_noted_and_comes_to_the_job(calls: Calls, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="Parent directory"):
        torch.save({}, tmp_path / "gone" / "a.pt")
    with pytest.raises(FileNotFoundError):
        torch.load(tmp_path / "b.pt")

    saved, read = calls.rows
    assert "Parent directory" in saved["error"]
    assert read["error"].startswith("FileNotFoundError")


def test_a_load_of_a_state_dict_that_fits_nowhere_is_noted(calls: Calls) -> None:
    model, _ = trained()
    state = model.state_dict()

    model.load_state_dict(state)
    model.load_state_dict({"weight": state["weight"], "head": state["bias"]}, strict=False)
    told = model.load_state_dict({f"module.{name}": value for name, value in state.items()}, strict=False)

    (row,) = calls.rows
    assert (row["kind"], row["function"]) == ("load", "torch.nn.Module.load_state_dict")
    assert "2 keys, such as module.weight" in row["error"]
    assert told.missing_keys == ["weight", "bias"]


def test_a_failure_of_ours_stays_out_of_the_jobs_load(monkeypatch: pytest.MonkeyPatch) -> None:
    it = Calls()
    it.source.start()
    try:
        monkeypatch.setattr(it.source, "_buffer", None)  # what our code goes through
        told = nn.Linear(2, 2).load_state_dict(state_dict={"head": torch.ones(2)}, strict=False)
        with pytest.raises(RuntimeError, match="Missing key"):
            nn.Linear(2, 2).load_state_dict({})
    finally:
        it.source.stop()

    assert (told.missing_keys, told.unexpected_keys) == (["weight", "bias"], ["head"])
    assert len(it.failures._buffer.rows) == 1


def test_detaching_restores_torchs_own_functions() -> None:
    of_modules = nn.Module.load_state_dict
    before = (torch.save, torch.load, torch.serialization.save, torch.serialization.load)
    it = Calls()

    it.source.start()
    patched = (torch.save, torch.load, torch.serialization.save, torch.serialization.load)
    it.source.stop()

    assert not set(patched) & set(before)
    assert patched[0] is patched[2]
    assert (torch.save, torch.load, torch.serialization.save, torch.serialization.load) == before
    assert nn.Module.load_state_dict is of_modules


def test_a_job_saves_the_same_bytes_with_it_and_without(tmp_path: Path) -> None:
    model, optimizer = trained()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, tmp_path / "a.pt")
    it = Calls()

    it.source.start()
    random = torch.get_rng_state()
    (tmp_path / "with").mkdir()
    torch.save(state, tmp_path / "with" / "a.pt")
    it.source.stop()

    assert (tmp_path / "a.pt").read_bytes() == (tmp_path / "with" / "a.pt").read_bytes()
    assert torch.equal(torch.get_rng_state(), random)
