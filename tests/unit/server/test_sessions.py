"""Sessions of the dashboard: codes that work once and in time, and what a question must bring."""

from __future__ import annotations

import pytest

from probe_agent.errors import BadRequest, Unauthorized
from probe_agent.server.access.sessions import CODE_S, MAX_CODES, MAX_SESSIONS, SESSION_S, Sessions

HOST = "node17:8080"


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sessions(clock: Clock) -> Sessions:
    return Sessions(clock)


def headers(cookie: str, key: str, **more: str) -> dict[bytes, bytes]:
    sent = {"host": HOST, "cookie": f"a=b; probe_session={cookie}", "x-probe-key": key, **more}
    return {name.replace("_", "-").encode(): value.encode() for name, value in sent.items()}


def opened(sessions: Sessions) -> tuple[str, str]:
    cookie, key, _ = sessions.open(sessions.offer("control"), HOST)
    return cookie, key


def test_a_code_opens_one_session_of_its_role(sessions: Sessions) -> None:
    code = sessions.offer("read")

    cookie, key, role = sessions.open(code, HOST)
    found = sessions.find(headers(cookie, key), "GET")

    assert role == "read"
    assert found is not None
    assert found.role == "read"
    with pytest.raises(Unauthorized, match="used already"):
        sessions.open(code, HOST)


def test_a_code_is_worthless_after_its_time(sessions: Sessions, clock: Clock) -> None:
    code = sessions.offer("control")
    clock.now += CODE_S + 1

    with pytest.raises(Unauthorized, match="too old"):
        sessions.open(code, HOST)


def test_a_session_ends_after_its_time_and_when_it_is_left(sessions: Sessions, clock: Clock) -> None:
    old, left = opened(sessions), opened(sessions)
    sessions.end(headers(*left))
    clock.now += SESSION_S - 1
    assert sessions.find(headers(*old), "GET")
    clock.now += 2

    for cookie, key in (old, left):
        with pytest.raises(Unauthorized, match="ended"):
            sessions.find(headers(cookie, key), "GET")


@pytest.mark.parametrize("wrong", [{"x_probe_key": ""}, {"x_probe_key": "A" * 43}, {"host": "node18:8080"}])
def test_the_cookie_alone_is_not_enough_and_holds_under_one_name(sessions: Sessions, wrong: dict[str, str]) -> None:
    cookie, key = opened(sessions)

    with pytest.raises(Unauthorized, match="did not open"):
        sessions.find({**headers(cookie, key), **headers(cookie, wrong.pop("x_probe_key", key), **wrong)}, "GET")


@pytest.mark.parametrize("sent", [{}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"}])
def test_a_change_must_come_from_a_page_of_the_server(sessions: Sessions, sent: dict[str, str]) -> None:
    cookie, key = opened(sessions)

    with pytest.raises(BadRequest, match="own pages"):
        sessions.find(headers(cookie, key, **sent), "POST")
    assert sessions.find(headers(cookie, key, sec_fetch_site="same-origin"), "POST")


def test_a_request_without_our_cookie_is_nobodys_session(sessions: Sessions) -> None:
    assert sessions.find({b"host": HOST.encode(), b"cookie": b"other=1"}, "GET") is None


def test_codes_and_sessions_are_bounded(sessions: Sessions) -> None:
    codes = [sessions.offer("read") for _ in range(MAX_CODES + 1)]
    with pytest.raises(Unauthorized):
        sessions.open(codes[0], HOST)
    first = opened(sessions)
    for _ in range(MAX_SESSIONS):
        opened(sessions)

    with pytest.raises(Unauthorized, match="ended"):
        sessions.find(headers(*first), "GET")
