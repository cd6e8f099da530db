"""Rows about parameters, gradients, schedules and containers of a job in this process."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.operations import (  # noqa: E402
    containers,
    current_step,
    gradients,
    modules,
    parameters,
    schedulers,
    tensors,
)
from probe_agent.recorder.source import Recorder  # noqa: E402
from probe_agent.recorder.torch import host_number  # noqa: E402


def ask(operation: Any, recorder: Recorder) -> list[dict[str, Any]]:
    """Return the rows by column, read on a separate thread as in a target."""
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(operation.answer(recorder, {})))
    thread.start()
    thread.join()
    assert tuple(found[0]["columns"]) == operation.COLUMNS
    return [dict(zip(operation.COLUMNS, row, strict=True)) for row in found[0]["rows"]]


@pytest.fixture
def recorder() -> Recorder:
    it = Recorder(Settings({}), lambda name, error: True)
    it.step.thread = threading.get_ident()
    return it


def test_a_parameter_that_is_never_changed_has_few_versions(recorder: Recorder) -> None:
    model = torch.nn.ModuleDict({"used": torch.nn.Linear(4, 4), "unused": torch.nn.Linear(4, 4)})
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(20):
        optimizer.zero_grad()
        model["used"](torch.ones(2, 4)).sum().backward()
        optimizer.step()

    found = {f"{row['module']}.{row['parameter']}": row for row in ask(parameters, recorder)}

    used, unused = found["ModuleDict.used.weight"], found["ModuleDict.unused.weight"]
    assert used["versions"] >= 20 > 8 > unused["versions"]
    assert (used["updates"], unused["updates"]) == (20, None)
    assert (used["optimizer"], used["lr"], used["trainable"], used["parameters"]) == ("Adam", 0.01, True, 16)
    assert (used["has_gradient"], unused["has_gradient"]) == (True, False)
    assert used["gradient_versions"] < 3


def test_the_step_under_way_tells_what_of_it_has_ended(recorder: Recorder) -> None:
    step = recorder.step
    step.reset()
    step.micro_batches, step.backward, step.data_wait = 3, 2_000_000, 5_000_000

    (row,) = ask(current_step, recorder)

    assert row["age"] > 0
    assert (row["number"], row["micro_batches"]) == (step.number, 3)
    assert (row["data_wait"], row["backward"], row["modules"]) == (0.005, 0.002, None)


def test_before_any_thread_trains_no_step_is_under_way() -> None:
    assert ask(current_step, Recorder(Settings({}), lambda name, error: True)) == []


def test_gradients_that_are_never_cleared_count_on(recorder: Recorder) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(20):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    row = ask(parameters, recorder)[0]

    assert row["gradient_versions"] >= 19
    assert row["is_cleared"] is False


def test_statistics_of_batch_norm_are_counted_where_they_change(recorder: Recorder) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4).eval())
    for _ in range(20):
        model(torch.randn(8, 4))

    told = {row["module"]: row["statistics_versions"] for row in ask(modules, recorder)}

    assert told["Sequential.1"] == 1 + 20  # it was made
    assert told["Sequential.2"] == 1
    assert told["Sequential.0"] is None


def test_a_compiled_model_is_in_the_mode_of_the_module_in_it(recorder: Recorder) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())
    compiled = torch.compile(model)

    def modes() -> dict[str, bool]:
        return {row["class"]: row["training"] for row in ask(modules, recorder)}

    assert modes()["OptimizedModule"] is True
    compiled.eval()
    assert modes()["OptimizedModule"] is False


def test_a_schedule_tells_its_calls(recorder: Recorder) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(5):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        schedule.step()

    (row,) = [one for one in ask(schedulers, recorder) if one["scheduler"] == "StepLR"]

    assert (row["calls"], row["updates"], row["optimizer"]) == (5, 5, "Adam")
    assert row["base_lr"] == 0.1
    assert row["lr"] == pytest.approx(0.01)


def test_a_list_of_losses_with_graphs_is_found_and_its_growth(recorder: Recorder) -> None:
    weight = torch.ones(4, requires_grad=True)
    losses: Any = deque((weight.sum() for _ in range(30)), maxlen=1000)
    plain = [float(number) for number in range(40)]
    episode = [weight.sum() for _ in range(20)]
    holder = {"saved": [weight.sum() for _ in range(20)]}
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.02):
            losses.append(weight.sum())
            if len(episode) >= 40:
                del episode[:]  # an update has used them
            episode.extend(weight.sum() for _ in range(4))
            holder["saved"] = [weight.sum() for _ in range(len(holder["saved"]) + 1)]  # a new list for each episode

    thread = threading.Thread(target=grow)
    thread.start()
    rows = ask(containers, recorder)
    stop.set()
    thread.join()

    found = {row["place"].partition("`")[2].partition("`")[0]: row for row in rows}
    assert found["losses"]["class"] == "deque"
    assert found["losses"]["graphs"] == found["losses"]["tensors"] == found["losses"]["items"] >= 30
    assert found["losses"]["added"] > 0
    assert "episode" not in found or found["episode"]["added"] == 0
    assert not any("'saved'" in row["place"] for row in rows), "it was dropped"
    assert found["plain"]["size"] > 0
    assert (found["plain"]["items"], found["plain"]["added"], found["plain"]["tensors"]) == (len(plain), 0, 0)


def test_a_sum_that_keeps_graphs_over_steps_is_told_from_one_that_a_step_makes(recorder: Recorder) -> None:
    weight = torch.ones(4, requires_grad=True)
    holder: dict[str, Any] = {"mean": torch.zeros(()), "of a step": None, "numbers": torch.zeros(())}
    stop = threading.Event()
    total = torch.zeros(())
    ends = recorder.ends

    def train() -> None:
        nonlocal total
        while not stop.wait(0.004):
            total += weight.sum()
            holder["mean"] = 0.1 * (weight * 2).sum() + 0.9 * holder["mean"]
            holder["of a step"] = sum((weight * number).sum() for number in range(30))
            holder["numbers"] = holder["numbers"] + weight.sum().detach()
            ends.num_ended += 1
            recorder.at_step.run_pending()

    thread = threading.Thread(target=train)
    thread.start()
    stop.wait(0.3)
    try:
        rows = [row for row in ask(containers, recorder) if row["class"] == "Tensor"]
    finally:
        stop.set()
        thread.join()

    found = {"mean" if "['mean']" in row["place"] else row["place"]: row for row in rows}
    assert len(found) == 2
    assert "mean" in found
    assert all(row["graphs"] == row["items"] > 20 and 0 < row["added"] < row["items"] for row in rows)
    assert all(row["steps"] > 0 for row in rows)


def test_exceptions_that_are_kept_hold_the_tensors_of_the_frames_they_came_through(recorder: Recorder) -> None:
    weight = torch.ones(4, requires_grad=True)
    shared = torch.ones(100)
    kept: list[BaseException] = []
    texts: list[str] = []

    def work(batch: dict[str, Any]) -> None:
        product = weight * batch["inputs"]
        raise ValueError(f"too short: {product.numel()}, {shared.numel()}")

    def step() -> None:
        try:
            work({"inputs": torch.ones(1000, 4)})
        except ValueError as error:
            kept.append(error)
            texts.append(str(error))

    for _ in range(40):
        step()

    found = {row["place"].partition("`")[2].partition("`")[0]: row for row in ask(containers, recorder)}

    row = found["kept"]
    assert row["class"] == "list of exceptions"
    assert (row["items"], row["tensors"], row["graphs"]) == (40, 40, 40)
    each = 2 * 16_000 / 2**20  # the inputs, and what was made of them
    assert row["tensor_size"] == pytest.approx(40 * each, rel=0.02), "what all frames have in common is counted once"
    assert (found["texts"]["class"], found["texts"]["tensors"]) == ("list", 0)


class Loader:
    """Its methods are cached: the first one without a bound."""

    @functools.cache  # noqa: B019
    def block(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(1000), torch.ones(500)

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def bounded(self, number: int) -> torch.Tensor:
        return torch.ones(1000)


def test_views_that_were_overwritten_do_not_hide_what_else_is_kept(recorder: Recorder) -> None:
    whole = torch.ones(40, requires_grad=True) * 2
    parts = list(whole.unbind())
    whole.add_(1)
    with pytest.raises(RuntimeError):
        parts[0].is_leaf  # noqa: B018

    found = {row["place"].partition("`")[2].partition("`")[0]: row for row in ask(containers, recorder)}

    assert (found["parts"]["tensors"], found["parts"]["graphs"]) == (40, 40)


def test_what_a_cache_of_a_method_keeps_is_a_container_if_it_has_no_bound(recorder: Recorder) -> None:
    def asked() -> None:
        raise AssertionError("the job's code ran")

    loader = Loader()
    Loader.block.cache_info = asked  # type: ignore[method-assign]
    for number in range(200):
        loader.block(number)
        loader.bounded(number)

    (row,) = [row for row in ask(containers, recorder) if row["class"] == "lru_cache"]

    assert row["place"] == "cache of `block` of class Loader"
    assert (row["items"], row["tensors"], row["graphs"]) == (200, 200, 0)
    assert row["size"] == pytest.approx(200 * 1500 * 4 / 2**20, rel=0.1)
    Loader.block.cache_clear()


class Metric:
    """One that makes a longer list each time, after a short one, as those of torchmetrics do."""

    def __init__(self) -> None:
        self.seen = [number / 3 for number in range(100)]
        self.batch = [number / 3 for number in range(100)]

    def update(self, number: int) -> None:
        before = self.seen
        self.seen = [number / 7]
        self.batch = [number / 7] * (90 + number % 30)
        time.sleep(0.002)
        self.seen = before + self.seen
        time.sleep(0.004)


def test_a_list_that_is_made_anew_and_longer_each_time_grows(recorder: Recorder) -> None:
    metric, answers = Metric(), list[dict[str, Any]]()
    thread = threading.Thread(target=lambda: answers.extend(ask(containers, recorder)))
    thread.start()
    number = 0
    while thread.is_alive():
        metric.update(number := number + 1)

    rows = {row["place"].partition("`")[2].partition("`")[0]: row for row in answers}
    assert 5 < (rows.get("seen") or rows["before"])["added"] <= number
    assert "batch" not in rows or rows["batch"]["added"] == 0, "it was dropped"


class Strict(list):  # type: ignore[type-arg]
    """A container whose methods nobody but the job may call."""

    def _no(self, *args: Any) -> Any:
        raise AssertionError("the job's code ran")

    __len__ = __iter__ = __reversed__ = __getitem__ = _no


def deep_model() -> torch.nn.Module:
    blocks = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2))) for _ in range(3))
    linear = blocks[2][0][0]
    linear.tables = {number: torch.ones(2) for number in range(20)}
    for _ in range(17):
        blocks[1].register_forward_hook(lambda *_: None)
        linear.weight.register_hook(lambda gradient: None)
    return torch.nn.ModuleDict({"blocks": blocks})


def test_what_the_modules_of_a_model_keep_is_found_however_deep_and_their_hooks(recorder: Recorder) -> None:
    holder = {"net": deep_model()}

    found = {row["place"].partition(" of [")[0]: row for row in ask(containers, recorder)}

    assert holder["net"].training
    assert found["attribute `tables` of module `blocks.2.0.0`"]["tensors"] == 20
    hooks = {place: row["items"] for place, row in found.items() if row["class"] == "hooks of one function"}
    assert hooks == {
        "`_forward_hooks` of module `blocks.1`": 17,
        "`_backward_hooks` of module `blocks.2.0.0.weight`": 17,
    }


def trained_in_halves(recorder: Recorder, *, asked: bool) -> tuple[list[Any], torch.Tensor]:
    """Train for 300 steps in bfloat16, asked for the gradients in the meantime or not: the losses, and where the
    generator of random numbers then is."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)).bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    rows: list[dict[str, Any]] = []
    reader = threading.Thread(target=lambda: rows.extend(ask(gradients, recorder)))
    if asked:
        reader.start()
    losses = []
    for _ in range(300):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 8).bfloat16()).square().mean()
        loss.backward()
        optimizer.step()
        recorder.at_step.run_pending()
        losses.append(loss.item())
        time.sleep(0.001)
    if asked:
        reader.join()
        assert {row["dtype"] for row in rows} == {"bfloat16"}
    return losses, torch.random.get_rng_state()


def test_a_job_in_bfloat16_computes_the_same_while_its_gradients_are_read(recorder: Recorder) -> None:
    recorder.open_device()

    (alone, state), (asked, state_asked) = (trained_in_halves(recorder, asked=is_asked) for is_asked in (False, True))

    assert asked == alone
    assert torch.equal(state, state_asked)


class Odd:
    __module__ = 5  # type: ignore[assignment]

    def __init__(self) -> None:
        self.kept = [torch.ones(1) for _ in range(20)]


def test_a_class_whose_module_has_no_name_is_searched_as_any_other(recorder: Recorder) -> None:
    odd = Odd()

    places = [row["place"] for row in ask(containers, recorder)]

    assert len(odd.kept) == 20
    assert any(place.startswith("attribute `kept` of local `odd`") for place in places)


def test_containers_are_read_without_the_code_of_their_classes(recorder: Recorder) -> None:
    strict = Strict()
    for number in range(300):
        list.append(strict, torch.tensor(float(number)))

    row = next(row for row in ask(containers, recorder) if row["place"].startswith("local `strict`"))

    assert (row["class"], row["items"], row["tensors"], row["graphs"]) == ("Strict", 300, 300, 0)


def test_a_number_is_read_of_plain_tensors_on_the_host_alone() -> None:
    class Sharded(torch.Tensor):  # type: ignore[misc]
        def item(self) -> float:
            raise AssertionError("it asks the other ranks")

    of_many = torch.ones(2), torch.ones((), device="meta"), torch.ones(()).as_subclass(Sharded), "1", None

    assert [host_number(value) for value in of_many] == [None] * 5
    assert [host_number(value) for value in (2, 0.5, torch.tensor(3), torch.tensor([4.0]))] == [2.0, 0.5, 3.0, 4.0]


def test_a_mode_of_the_job_sees_no_operator_of_ours() -> None:
    class Counting(TorchDispatchMode):  # type: ignore[misc]
        seen = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    number = torch.tensor(3.0)
    with Counting() as mode:
        assert host_number(number) is None

    assert mode.seen == 0
    assert host_number(number) == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_read_at_the_end_of_a_step(recorder: Recorder, dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False) for _ in range(3))).to(dtype)
    recorder.open_device()
    stop = threading.Event()
    rows: list[dict[str, Any]] = []

    def read() -> None:
        rows.extend(ask(gradients, recorder))
        stop.set()

    reader = threading.Thread(target=read)
    reader.start()
    while not stop.wait(0.005):
        model.zero_grad()
        model(torch.ones(2, 4, dtype=dtype)).sum().backward()
        if recorder.at_step.pending:
            recorder.at_step.run_pending()
    reader.join()

    assert [row["module"] for row in rows] == [f"Sequential.{at}" for at in range(3)]
    assert [row["norm"] for row in rows] == pytest.approx([float(one.weight.grad.float().norm()) for one in model])
    weights = [float(one.weight.detach().float().norm()) for one in model]
    of_half = dtype is torch.bfloat16
    assert [row["weight_norm"] for row in rows] == (pytest.approx(weights) if of_half else [None] * 3)
    assert {row["dtype"] for row in rows} == {str(dtype).partition(".")[2]}


class Listening:
    """A client that waits for the answer."""

    def cancelled(self) -> bool:
        return False


def test_a_job_computes_the_same_while_its_parameters_are_read(recorder: Recorder) -> None:
    recorder.open_device()

    def trained(*, asked: bool) -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        told: list[Any] = []
        request = {"what": "parameters", "budget_ms": 5.0, "timeout": 5.0}
        reader = threading.Thread(target=lambda: told.append(tensors.stream(recorder, request, Listening())))  # type: ignore[arg-type]
        if asked:
            reader.start()
        losses = []
        for _ in range(300):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 8)).square().mean()
            loss.backward()
            optimizer.step()
            recorder.at_step.run_pending()
            losses.append(loss.item())
            time.sleep(0.001)
        if asked:
            reader.join()
            rows = [dict(zip(told[0]["columns"], row, strict=True)) for row in told[0]["rows"]]
            assert {row["kind"] for row in rows} == {"parameter"}
            assert all(row["norm"] > 0 for row in rows)
            assert len(rows) >= 4
        return losses, torch.random.get_rng_state()

    (alone, state), (asked, state_asked) = (trained(asked=is_asked) for is_asked in (False, True))

    assert asked == alone
    assert torch.equal(state, state_asked)
