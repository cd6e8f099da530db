"""Requests generated from the API's own description: each gets an answer that the description allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .served import Served, serving, training

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

#: Those that take their time, or take something of this host away; without the role they do neither.
NOT_DONE = ("/v1/clean", "/v1/detach", "/v1/eval/hold", "/v1/profile/cpu", "/v1/profile/steps", "/v1/watch")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server"), "--listen", "TCP") as server, training():
        yield server


@pytest.fixture(scope="module")
def operations(server: Served) -> list[Any]:
    """Return every endpoint of the description."""
    described = schemathesis.openapi.from_url(f"http://{server.tcp}/openapi.json", headers=server.token("read"))
    return [found.ok() for found in described.get_all_operations()]


def ask_each(operations: list[Any], check: Callable[[Any], None]) -> None:
    """Send a few requests to each; always the same ones."""
    few = hypothesis.settings(max_examples=5, deadline=None, derandomize=True, database=None)
    for operation in operations:

        @few
        @hypothesis.given(operation.as_strategy())
        def put(case: Any) -> None:
            check(case)

        put()


def test_no_question_makes_the_server_fail(server: Served, operations: list[Any]) -> None:
    def check(case: Any) -> None:
        role = "read" if case.path in NOT_DONE else "control"

        answer = case.call(headers=server.token(role), timeout=30)

        case.validate_response(answer, checks=[schemathesis.checks.CHECKS.get_one("status_code_conformance")])
        assert answer.status_code != 500, answer.text
        if answer.status_code >= 400:
            assert set(answer.json()["error"]) == {"message", "hint", "kind"}

    ask_each(operations, check)


def test_no_question_with_the_token_for_reading_controls_anything(server: Served, operations: list[Any]) -> None:
    def check(case: Any) -> None:
        answer = case.call(headers=server.token("read"), timeout=30)

        is_for_control = "is control, and this token is for reading only" in answer.text
        needed = case.operation.definition.raw["x-role"]
        assert is_for_control is (needed == "control"), answer.text
        if answer.status_code == 403:  # or it wants more memory or time than readers may have, or names a folder
            others = ("a query may take at most", "a folder can be named on the server's unix socket only")
            assert is_for_control or any(other in answer.text for other in others)
        else:
            assert not is_for_control

    ask_each(operations, check)
