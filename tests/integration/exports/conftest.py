"""The recorded job, and `probe` in this process: what it printed and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from support.recorded_job import RecordedJob, recorded_job

from probe_cli.main import run


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Ask = Callable[..., Done]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedJob]:
    with recorded_job(tmp_path_factory.mktemp("job")) as job:
        yield job


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    monkeypatch.setenv("PROBE_INSECURE", "1")

    def ask(*words: str) -> Done:
        code = run(list(words))
        return Done(code, *capsys.readouterr())

    return ask
