"""Text of local variables: tensors by their kind, nothing of the job's code run, secrets gone."""

from __future__ import annotations

import abc
import sys
import threading
from types import FrameType
from typing import Any

import pytest

from probe_agent.recorder.names.values import described, locals_of

torch = pytest.importorskip("torch")


class Loud(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor whose every attribute runs code of the job."""

    @classmethod
    def __torch_function__(cls, *arguments: Any, **named: Any) -> Any:
        raise AssertionError("code of the job ran")


@pytest.mark.torch
def test_tensors_are_shown_by_shape_dtype_and_device_whatever_their_name() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))

    assert described("key_states", torch.zeros(2, 3)) == "Tensor(2, 3) float32 cpu"
    assert described("weight", weight) == "Parameter(4) bfloat16 cpu"
    assert described("batch", {"tokens": torch.zeros(1, dtype=torch.int64)}) == "{'tokens': Tensor(1) int64 cpu}"


@pytest.mark.torch
def test_a_tensor_of_a_class_of_the_job_is_not_asked_for_anything() -> None:
    assert described("loud", torch.zeros(1).as_subclass(Loud)).endswith("test_shown_values.Loud>")


def test_a_metaclass_is_not_asked_for_its_name() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise AssertionError("code of the job ran")

    class Made(metaclass=Meta):
        pass

    assert "Made>" in described("made", Made())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "https://ada:hunter2@host/" + "x" * 500),
        ("settings", {"aws_secret": "hunter2", "n": 1}),
        ("command", ["curl", "-H", "x", "--token=hunter2"]),
        ("text", "x" * 40 + " password: hunter2 " + "y" * 5000),
        ("secret_number", 2**80),
    ],
)
def test_secrets_are_left_out(name: str, value: object) -> None:
    shown = described(name, value)

    assert "***" in shown
    assert "hunter2" not in shown
    assert str(2**80) not in shown
    assert len(shown) <= 120


def test_large_values_are_shortened_at_once() -> None:
    assert described("numbers", list(range(10**6))) == "[0, 1, 2, 3, 4, 5, … 1000000 in all]"
    assert described("number", 7 ** (10**5)) == "int of many digits"
    assert described("data", bytes(10**6)) == "bytes of 1000000"


class Trainer:
    def __init__(self) -> None:
        self.lock = threading.RLock()

    @property
    def loud(self) -> None:
        raise AssertionError("code of the job ran")

    def frame(self) -> FrameType:
        if self.lock is None:
            print(self.loud)
        return sys._getframe()


WRITER = Trainer()


class Registry(abc.ABC):
    """A class with a metaclass: its dictionary is behind a proxy."""

    guard = threading.RLock()

    @abc.abstractmethod
    def name(self) -> str: ...


def test_a_lock_of_a_global_object_is_shown() -> None:
    with WRITER.lock:
        assert locals_of(sys._getframe())["WRITER.lock"].startswith("<RLock held by thread ")


def test_a_lock_of_a_class_with_a_metaclass_is_shown() -> None:
    with Registry.guard:
        assert locals_of(sys._getframe())["Registry.guard"].startswith("<RLock held by thread ")


class Pool:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def frame(self) -> FrameType:
        if self.trainer is None:
            print(self.trainer.loud)
        with self.trainer.lock:
            return sys._getframe()


def test_a_lock_of_an_attribute_is_shown() -> None:
    assert locals_of(Pool(Trainer()).frame())["self.trainer.lock"] == "<RLock, unlocked>"


def test_a_held_rlock_is_shown_with_its_owner_wherever_the_function_has_it_from() -> None:
    trainer, plain, taken = Trainer(), threading.Lock(), threading.Event()
    done = threading.Event()

    def keep() -> None:
        with trainer.lock:
            taken.set()
            done.wait()

    keeper = threading.Thread(target=keep, name="keeper")
    keeper.start()
    taken.wait()
    shown = locals_of(trainer.frame())
    done.set()
    keeper.join()

    assert shown["self.lock"] == f"<RLock held by thread keeper ({keeper.ident})>"
    assert described("lock", trainer.lock) == "<RLock, unlocked>"
    assert described("lock", plain) == f"<lock {id(plain):#x}, unlocked>"
