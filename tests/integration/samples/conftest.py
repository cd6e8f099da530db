"""A host server and one job of known sizes, for tests that only read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from subprocess import Popen

import pytest

from tests.integration.server.conftest import Host

pytest.importorskip("torch")


@pytest.fixture(scope="package")
def training(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Popen[str]]]:
    with ExitStack() as running:
        host = Host(tmp_path_factory.mktemp("host"), running)
        yield host, host.target(script="known_training.py")


@pytest.fixture
def host(training: tuple[Host, Popen[str]]) -> Host:
    return training[0]


@pytest.fixture
def target(training: tuple[Host, Popen[str]]) -> Popen[str]:
    return training[1]
