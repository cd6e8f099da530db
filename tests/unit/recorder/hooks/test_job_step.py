"""`step` is the job's own number, if it has one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from probe_agent.recorder.config import Settings  # noqa: E402
from probe_agent.recorder.steps.governor import turn_of  # noqa: E402

TRAINERS: list[Trainer] = []


class Trainer:
    """Count as most do: after optimizer.step()."""

    def __init__(self, begin: int = 0, by: int = 1, kind: type[torch.optim.Optimizer] = torch.optim.SGD) -> None:
        self.net = nn.Linear(8, 1)
        self.optimizer = kind(self.net.parameters(), 0.1)
        self.global_step = begin
        self.state = {"step": begin}
        self.by = by

    def train(self, num_steps: int) -> list[int]:
        """Return the number of each step."""
        numbers = []
        for _ in range(num_steps):
            self.net(torch.ones(4, 8)).sum().backward()
            self.optimizer.step()
            numbers.append(self.global_step)
            self.global_step += self.by
            self.state["step"] = self.global_step
        return numbers


def numbers(it) -> list[int]:
    return [step["step"] for step in it.steps]


@pytest.mark.parametrize(
    "text", ["self.global_step", "trainer.global_step", "trainer.state['step']", "TRAINERS[0].global_step"]
)
@pytest.mark.parametrize("by", [1, 2])
def test_the_jobs_number_is_taken_where_step_from_says(recording, text, by):
    trainer = Trainer(begin=351, by=by)
    TRAINERS[:] = [trainer]
    with recording(trace_every=4) as it:
        it.recorder.settings.change({"step.from": text})
        expected = trainer.train(40)

    # By how much it grows is known from the second step on.
    assert numbers(it)[1:] == expected[2:]
    assert {step["counted"] for step in it.steps} == {True}
    sampled = [step["step"] for step in it.steps if step["sampled"]]
    assert sampled == [number for number in expected[1:] if turn_of(number, 4, by) is not None]


def test_a_number_that_becomes_known_later_is_taken_from_then_on(recording):
    trainer = Trainer(begin=351)
    with recording(trace_every=0) as it:
        trainer.train(5)
        it.recorder.settings.change({"step.from": "trainer.global_step"})
        expected = trainer.train(5)

    assert numbers(it) == [1, 2, 3, 4, *expected]
    assert [step["counted"] for step in it.steps] == [False] * 4 + [True] * 5


def test_without_a_number_it_says_so(recording):
    with recording(trace_every=0) as it:
        Trainer(begin=351).train(5)
    assert [(step["step"], step["counted"]) for step in it.steps] == [(number, False) for number in (1, 2, 3, 4)]


def test_the_count_of_the_optimizer_is_the_jobs_number(recording):
    trainer = Trainer(kind=torch.optim.AdamW)
    trainer.train(7)
    with recording(trace_every=0) as it:
        expected = trainer.train(4)
    assert numbers(it) == expected[1:]
    assert {step["counted"] for step in it.steps} == {True}


def test_a_number_never_goes_back(recording):
    trainer = Trainer(begin=5, kind=torch.optim.AdamW)
    trainer.train(10)
    trainer.global_step = 3
    with recording(trace_every=0) as it:
        trainer.train(4)
        it.recorder.settings.change({"step.from": "trainer.global_step"})
        trainer.train(4)
    assert numbers(it) == [11, 12, 13, 14, 15, 16, 17]
    assert [step["counted"] for step in it.steps] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nowhere.global_step", "name 'nowhere' is not defined"),
        ("trainer.globalstep", "'Trainer' object has no attribute 'globalstep'"),
        ("trainer.net", "trainer.net is Linear; the number of a step is a whole number"),
        ("trainer.by", "trainer.by does not count these steps: it was 1, and 1 in a later one"),
    ],
)
def test_an_unreadable_counter_is_reported_and_not_raised(recording, text, why):
    trainer = Trainer(begin=351)
    told = []
    with recording(trace_every=0) as it:
        it.recorder.ends._job_step._fail = lambda source, error: told.append((source, str(error)))
        trainer.train(2)
        it.recorder.settings.change({"step.from": text})
        trainer.train(8)

    assert numbers(it) == list(range(1, 10))
    assert [step["counted"] for step in it.steps][-1] is False
    assert len(told) == 3  # then it is not tried again
    in_force, reason = it.recorder.ends.explain_number()
    assert in_force == "counted from the attach"
    assert why in reason
    assert all(source == "step.from" and why in message for source, message in told)


@pytest.mark.parametrize("text", ["print()", "a + b", "a.", "a[b]", "lambda: 1", "1"])
def test_only_a_variable_and_what_is_reached_from_it_is_taken(text):
    settings = Settings({})
    with pytest.raises(ValueError, match=r"for step\.from"):
        settings.change({"step.from": text})
    settings.change({"step.from": " trainer.state['step'] "})
    assert settings["step.from"] == "trainer.state['step']"


def test_a_job_ends_with_the_same_bits(recording):
    def train(text: str | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        trainer = Trainer()
        if text is None:
            trainer.train(40)
        else:
            with recording(trace_every=4) as it:
                it.recorder.settings.change({"step.from": text})
                trainer.train(40)
        return [*trainer.net.state_dict().values(), torch.rand(2)]

    for text in ("trainer.global_step", "self.state['step']"):
        assert all(torch.equal(one, other) for one, other in zip(train(None), train(text), strict=True))


def test_the_trainer_of_hugging_face_is_found(recording, tmp_path):
    transformers = pytest.importorskip("transformers")

    class Model(nn.Linear):
        def forward(self, x, labels):
            return {"loss": (super().forward(x) - labels).square().mean()}

    counted = []

    class Attach(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            counted.append(state.global_step)  # one more than in optimizer.step
            if state.global_step == 3:
                it.start()

    rows = [{"x": torch.ones(8), "labels": torch.ones(1)} for _ in range(20)]
    options = {"max_steps": 9, "per_device_train_batch_size": 1, "optim": "sgd", "report_to": [], "use_cpu": True}
    arguments = transformers.TrainingArguments(str(tmp_path), disable_tqdm=True, save_strategy="no", **options)
    with recording(trace_every=0) as it:
        it.stop()
        trainer = transformers.Trainer(Model(8, 1), arguments, train_dataset=rows, callbacks=[Attach()])
        trainer.train()

    assert counted == list(range(1, 10))
    assert numbers(it) == [4, 5, 6, 7, 8]
    assert {step["counted"] for step in it.steps} == {True}
    text, why = it.recorder.ends.explain_number()
    assert (text, why) == ("Trainer.state.global_step", "found in the loop of transformers.trainer")


def test_the_trainer_of_lightning_is_found(recording, tmp_path):
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 1)

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

        def on_train_batch_end(self, *args):
            if self.trainer.global_step == 3:
                it.start()

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with recording(trace_every=0) as it:
        it.stop()
        trainer = lightning.Trainer(max_steps=9, accelerator="cpu", default_root_dir=tmp_path, **quiet)
        trainer.fit(Task(), torch.utils.data.DataLoader(torch.ones(20, 8)))

    assert numbers(it) == [4, 5, 6, 7, 8]
    assert {step["counted"] for step in it.steps} == {True}
