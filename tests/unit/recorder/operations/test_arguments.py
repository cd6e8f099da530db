"""Values that models, loss modules and loaders are given, around real training loops in this process."""

from __future__ import annotations

import threading
from collections import UserDict
from collections.abc import Callable, Iterable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.hooks import backward, data, modules, optimizer, phases  # noqa: E402
from probe_agent.recorder.operations import arguments  # noqa: E402
from probe_agent.recorder.source import Recorder  # noqa: E402
from probe_agent.recorder.steps import arguments as arguments_watch  # noqa: E402
from probe_agent.recorder.steps.arguments import Arguments  # noqa: E402
from probe_agent.recorder.steps.queue import StepQueue  # noqa: E402

pytestmark = pytest.mark.torch


class Language(nn.Module):
    """A model that is called as those of Hugging Face are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        logits = self.head(self.table(input_ids))
        return logits if labels is None else self.criterion(logits[:, :-1].reshape(-1, 50), labels[:, 1:].reshape(-1))


def asked(
    model: Any, batches: Iterable[Any], loss_of: Callable[[Any], Any], *, is_asked: bool = True
) -> tuple[list[dict[str, Any]], list[float]]:
    """Train while another thread asks; return the rows, and the losses."""
    failures: list[BaseException] = []
    recorder = Recorder(Settings({"PROBE_TRACE_EVERY": "0"}), lambda name, error: bool(failures.append(error)))
    step = recorder.step
    step.beginning.append(recorder.at_step.run_pending)
    sources = [kind.Source(recorder) for kind in (optimizer, modules, backward, data, phases)]
    for source in sources:
        source.start()
    optimizer_of = torch.optim.SGD(model.parameters(), lr=0.1)
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(arguments.answer(recorder, {})))
    losses = []
    try:
        for number, batch in enumerate(batches):
            if number == 2 and is_asked:
                thread.start()
                while not recorder.at_step.pending:
                    pass
            loss = loss_of(batch)
            loss.backward()
            optimizer_of.step()
            optimizer_of.zero_grad()
            losses.append(loss.item())
        if is_asked:
            thread.join()
            assert step.watcher is None
            assert not recorder.at_step.pending
    finally:
        step.beginning.clear()
        for source in reversed(sources):
            source.stop()
        recorder.close()
    assert not failures, failures
    assert not modules_hooks(), "hooks are left"
    return [dict(zip(arguments.COLUMNS, row, strict=True)) for answer in answers for row in answer["rows"]], losses


def modules_hooks() -> bool:
    return bool(nn.modules.module._has_any_global_hook())


def tokens() -> Any:
    return (torch.arange(4 * 12).reshape(4, 12) * 7) % 50


def test_names_values_and_relations_of_keyword_arguments_are_told() -> None:
    model, ids = Language(), tokens()
    mask = torch.ones_like(ids)
    mask[:, 9:] = 0
    shifted = torch.cat([ids[:, 1:], torch.full((4, 1), -100)], dim=1)

    rows, _ = asked(model, [ids] * 12, lambda ids: model(ids, attention_mask=mask, labels=shifted))

    first = {row["name"]: row for row in rows if row["call"] == 1}
    assert list(first) == ["input_ids", "attention_mask", "labels"]
    assert {row["module"] for row in rows} == {"Language"}, "the loss module below it is not the outermost"
    assert first["input_ids"]["shape"] == "4x12"
    assert (first["attention_mask"]["low"], first["attention_mask"]["mean"]) == (0.0, 0.75)
    assert first["labels"]["ignored"] == pytest.approx(1 / 12)
    assert (first["labels"]["next_of_first"], first["labels"]["same_as_first"]) == (1.0, 0.0)
    assert max(row["call"] for row in rows) == arguments.NUM_STEPS


@pytest.mark.parametrize(
    ("prompt", "has_end", "told"), [(0, False, 1.0), (0, True, 0.0), (4, False, 0.0)], ids=["pad", "own", "answers"]
)
def test_a_text_whose_end_is_ignored_is_told_from_one_without_its_prompt(
    prompt: int, has_end: bool, told: float
) -> None:
    model, ids = Language(), tokens()
    mask, labels = torch.ones_like(ids), ids.clone()
    mask[:, 9:] = 0
    labels[:, 9 if has_end else 8 :] = labels[:, :prompt] = -100

    rows, _ = asked(model, [ids] * 8, lambda ids: model(ids, attention_mask=mask, labels=labels))

    assert {row["end_ignored"] for row in rows if row["name"] == "labels"} == {told}
    assert {row["end_ignored"] for row in rows if row["name"] == "input_ids"} == {0.0}


def test_batches_of_a_loader_and_a_loss_module_are_told() -> None:
    model, criterion = nn.Linear(3, 2), nn.MSELoss()
    samples = [UserDict({"x": torch.full((3,), 255.0), "y": torch.zeros(2)}) for _ in range(48)]
    loader = DataLoader(
        samples,  # type: ignore[arg-type]
        batch_size=4,
        collate_fn=lambda held: UserDict({key: torch.stack([one[key] for one in held]) for key in "xy"}),
    )

    rows, _ = asked(model, loader, lambda batch: criterion(model(batch["x"]), batch["y"]))

    told = {(row["module"], row["name"]): row for row in rows}
    assert list(told) == [
        (None, "x"), (None, "y"),
        ("Linear", "input"), ("Linear", "output"), ("MSELoss", "input"), ("MSELoss", "target"),
    ]  # fmt: skip
    assert (told[None, "x"]["low"], told[None, "x"]["common"]) == (255.0, 1.0)
    assert told["Linear", "input"]["library"] == "torch"


def test_the_losses_are_those_of_a_run_that_nobody_asked() -> None:
    def losses(is_asked: bool) -> list[float]:
        torch.manual_seed(3)
        model = nn.Sequential(Language(), nn.Dropout(0.3))
        return asked(model, [tokens()] * 20, lambda ids: model(ids).square().mean(), is_asked=is_asked)[1]

    assert losses(True) == losses(False)


def test_who_asks_may_leave_at_any_moment_and_nobody_watches_any_more() -> None:
    class Leaves(StepQueue):
        def submit(self, job: Any) -> None:
            super().submit(job)
            watch.leave()

    recorder = Recorder(Settings({}), lambda name, error: True)
    queue = Leaves()
    watch = Arguments(queue, recorder.step, recorder.device, 6, recorder.fail)

    watch.run()

    assert recorder.step.watcher is None
    queue.run_pending()
    assert (recorder.step.watcher, queue.pending) == (None, [])


@pytest.mark.parametrize(("pace_ms", "begins"), [(10, 32), (100, 24)])
def test_ranks_that_are_asked_one_after_the_other_begin_with_the_same_step(
    monkeypatch: pytest.MonkeyPatch, pace_ms: int, begins: int
) -> None:
    recorder = Recorder(Settings({}), lambda name, error: True)

    def begin(asked_at: int) -> int:
        watch = Arguments(recorder.at_step, recorder.step, recorder.device, 1, recorder.fail, in_common=True)
        watch.run()
        for recorder.step.number in range(asked_at, 100):
            monkeypatch.setattr(arguments_watch, "perf_counter_ns", lambda: recorder.step.number * pace_ms * 1_000_000)
            recorder.at_step.run_pending()
            if recorder.step.watcher is watch:
                break
        watch.leave()
        recorder.at_step.run_pending()
        return recorder.step.number

    for asked_at in (20, 22):
        monkeypatch.setattr(arguments_watch, "perf_counter_ns", lambda at=asked_at: at * pace_ms * 1_000_000)
        assert begin(asked_at + 1) == begins


class Own(list):  # type: ignore[type-arg]
    """A container whose methods nobody but the job may call."""

    def __getitem__(self, at: Any) -> Any:
        raise AssertionError("the job's code ran")

    def __iter__(self) -> Any:
        raise AssertionError("the job's code ran")


def test_a_list_of_the_jobs_own_class_is_read_past_it() -> None:
    class Takes(nn.Linear):
        def forward(self, given: Any) -> Any:
            return super().forward(list.__getitem__(given, 0))

    model = Takes(3, 2)

    rows, _ = asked(model, [Own([torch.ones(4, 3)])] * 10, lambda batch: model(batch).sum())

    assert {row["name"]: row["read"] for row in rows} == {"given[0]": 12, "output": 8}


class Seen(TorchDispatchMode):
    """The operators that a job sees by a mode of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_function_mode_of_the_job_sees_no_attribute_that_is_read() -> None:
    model, seen = nn.Linear(3, 2), SeenToo()

    def loss_of(batch: Any) -> Any:
        with seen:
            return model(batch).sum()

    rows, _ = asked(model, [torch.ones(4, 3)] * 10, loss_of)

    assert rows == []
    assert len(seen.names) == 10 * len(set(seen.names))


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_mode_of_the_job_sees_no_operator_of_ours(is_asked: bool) -> None:
    model, seen = nn.Linear(3, 2), Seen()

    def loss_of(batch: Any) -> Any:
        with seen:
            return model(batch).sum()

    rows, _ = asked(model, [torch.ones(4, 3)] * 10, loss_of, is_asked=is_asked)

    assert rows == []
    assert len(seen.names) == 10 * len(set(seen.names))


class SeenToo(TorchFunctionMode):
    """The same for functions, and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("tensor", "read"),
    [
        (torch.arange(4000.0).reshape(4, 1000), 4 * 512),
        (torch.arange(24.0).reshape(4, 6)[:, :3], 12),
        (torch.arange(24.0).reshape(2, 3, 4), 24),
        (torch.arange(24.0).reshape(4, 6).T, 0),
        (torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2), 0),
        (torch.ones(1).expand(6), 0),
        (torch.ones(1, 6).expand(4, 6), 24),
        (torch.ones(6), 6),
        (torch.tensor(2.0), 1),
        (torch.ones(4, 6, dtype=torch.bfloat16), 0),
        (torch.full((4, 16), 1e200, dtype=torch.float64) * torch.arange(16), 64),
        (torch.ones(0, 6), 0),
        (torch.ones(4, 6, device="meta"), 0),
    ],
)
def test_rows_that_lie_in_memory_one_by_one_are_read(tensor: Any, read: int) -> None:
    class Takes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))

        def forward(self, given: Any) -> Any:
            return self.weight * 2

    model = Takes()
    rows, _ = asked(model, [tensor] * 10, model)

    assert {row["read"] for row in rows} == {read}
    if read == 4 * 512:
        assert (rows[0]["low"], rows[0]["high"], rows[0]["distinct"]) == (0.0, 3999.0, 2048)
    if read == 12:
        assert (rows[0]["high"], rows[0]["mean"]) == (20.0, 10.0)


def test_a_storage_that_was_released_is_not_read() -> None:
    class Takes(nn.Linear):
        def forward(self, given: Any, released: Any) -> Any:
            return super().forward(given)

    model, released = Takes(3, 2), torch.ones(4, 3)
    released.untyped_storage().resize_(0)

    rows, _ = asked(model, [torch.ones(4, 3)] * 10, lambda batch: model(batch, released).sum())

    assert {row["name"]: row["read"] for row in rows} == {"given": 12, "released": 0, "output": 8}


def test_outputs_that_do_not_depend_on_the_sample_are_told_from_others() -> None:
    class Decoder(nn.Linear):
        is_collapsed = False

        def forward(self, given: Any) -> Any:
            return super().forward(given * 1e-4 if self.is_collapsed else given) + torch.arange(40.0) / 40

    def varies(is_collapsed: bool) -> tuple[float, float]:
        torch.manual_seed(3)
        model = Decoder(20, 40)
        model.is_collapsed = is_collapsed
        rows, _ = asked(model, [torch.randn(8, 20) for _ in range(10)], lambda batch: model(batch).square().mean())
        given, output = ({row["varies"] for row in rows if row["name"] == name} for name in ("given", "output"))
        return min(given), max(output)

    assert varies(is_collapsed=True) == (pytest.approx(0.93, abs=0.03), pytest.approx(0.0, abs=0.01))
    assert varies(is_collapsed=False)[1] > 0.5
