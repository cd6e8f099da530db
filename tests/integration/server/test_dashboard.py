"""The dashboard's way in: codes, cookies and keys, over real sockets; docs/security.md lists the attacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from support.browser import CHROMIUM, browsing
from support.commands import probe
from support.waiting import until

from probe_agent.server.dashboard.files import DIST

from .served import Served, serving, training

CONTROL = [
    ("POST", "/v1/eval"),
    ("POST", "/v1/profile/cpu"),
    ("POST", "/v1/backtrace"),
    ("PATCH", "/v1/config"),
    ("POST", "/v1/detach"),
    ("POST", "/v1/clean"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("server"), "--listen", "TCP") as server:
        yield server


@pytest.fixture(scope="module")
def target() -> Iterator[int]:
    with training() as pid:
        yield pid


def code(server: Served, role: str = "control", wanted: str = "control") -> str:
    answer = server.ask("POST", "/v1/dashboard/code", role, json={"role": wanted})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["code"])


@contextmanager
def browser(address: str, code: str) -> Iterator[httpx.Client]:
    """What a page of the server asks with, once it is let in."""
    with httpx.Client(base_url=address, trust_env=False, timeout=60, headers={"Origin": address}) as http:
        answer = http.post("/v1/dashboard/session", json={"code": code})
        assert answer.status_code == 200, answer.text
        http.headers["X-Probe-Key"] = answer.json()["key"]
        yield http


def test_the_page_is_open_tells_nothing_and_forbids_every_other_origin(server: Served) -> None:
    page = server.ask("GET", "/")

    assert page.status_code in (200, 503)  # 503: nothing has been bundled
    policy = page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["X-Content-Type-Options"] == "nosniff"
    assert page.headers["Referrer-Policy"] == "no-referrer"
    assert "set-cookie" not in page.headers
    assert not re.search(r"(src|href)=\"?(?![\"/]?/?dashboard/)|<script>| style=| on\w+=", page.text)


@pytest.mark.parametrize("name", ["../files.py", "..%2ffiles.py", "files.py", "%2e%2e/__init__.py", "none.js"])
def test_nothing_but_the_pages_files_is_served(server: Served, name: str) -> None:
    assert server.ask("GET", f"/dashboard/{name}").status_code in (400, 401, 404)


def test_a_code_is_exchanged_once_for_a_cookie_that_no_script_and_no_other_site_uses(server: Served) -> None:
    one = code(server)
    address = f"http://{server.tcp}"

    first = httpx.post(f"{address}/v1/dashboard/session", json={"code": one}, trust_env=False)
    again = httpx.post(f"{address}/v1/dashboard/session", json={"code": one}, trust_env=False)

    flags = first.headers["set-cookie"]
    assert "HttpOnly" in flags
    assert "samesite=strict" in flags.lower()
    assert "Path=/v1" in flags
    assert first.headers["Cache-Control"] == "no-store"
    assert again.status_code == 401
    assert "set-cookie" not in again.headers


def test_only_those_who_may_ask_get_a_code(server: Served) -> None:
    assert server.ask("POST", "/v1/dashboard/code", json={}).status_code == 401
    with browser(f"http://{server.tcp}", code(server)) as page:
        refused = page.post("/v1/dashboard/code", json={})
    assert refused.status_code == 403
    made_up = server.ask("POST", "/v1/dashboard/session", json={"code": "A" * 32})
    assert made_up.status_code == 401


def test_a_session_asks_and_controls_and_ends(server: Served, target: int) -> None:
    with browser(f"http://{server.tcp}", code(server)) as page:
        asked = page.post("/v1/query", params={"pid": target}, json={"sql": "SELECT 6 * 7"})
        ran = page.post("/v1/eval", params={"pid": target}, json={"code": "6 * 7"})
        page.delete("/v1/dashboard/session")
        ended = page.get("/v1/targets")

    assert asked.json()["rows"] == [[42]]
    assert json.loads(ran.text.splitlines()[-1])["result"] == "42"
    assert ended.status_code == 401


@pytest.mark.parametrize(("role", "wanted"), [("read", "control"), ("control", "read")])
def test_a_session_for_reading_controls_nothing(server: Served, role: str, wanted: str) -> None:
    with browser(f"http://{server.tcp}", code(server, role, wanted)) as page:
        assert page.get("/v1/dashboard/session").json()["role"] == "read"
        assert page.get("/v1/targets").status_code == 200
        for method, path in CONTROL:
            assert page.request(method, path, json={"code": "1"}).status_code == 403, path
        greedy = page.post("/v1/query", json={"sql": "SELECT 1", "memory_mb": 4096})
    assert greedy.status_code == 403


def test_cookie_or_key_alone_foreign_pages_and_foreign_names_get_nothing(server: Served) -> None:
    address = f"http://{server.tcp}"
    with browser(address, code(server)) as page:
        port = server.tcp.rpartition(":")[2]
        attempts = {
            "no key": page.get("/v1/targets", headers={"X-Probe-Key": ""}),
            "foreign origin": page.post("/v1/query", headers={"Origin": "http://evil.example"}, json={"sql": ""}),
            "another site": page.get("/v1/targets", headers={"Sec-Fetch-Site": "cross-site"}),
            "another port of this host": page.get("/v1/targets", headers={"Sec-Fetch-Site": "same-site"}),
            "rebound name": page.get("/v1/targets", headers={"Host": f"evil.example:{port}", "Origin": ""}),
            "no origin": page.post("/v1/query", headers={"Origin": ""}, json={"sql": "SELECT 1"}),
        }
        key = page.headers["X-Probe-Key"]
    attempts["no cookie"] = httpx.get(f"{address}/v1/targets", headers={"X-Probe-Key": key}, trust_env=False)
    login = httpx.post(
        f"{address}/v1/dashboard/session", json={"code": code(server)}, headers={"Sec-Fetch-Site": "cross-site"}
    )

    assert {name: answer.status_code for name, answer in attempts.items() if answer.status_code not in (401, 403)} == {}
    assert login.status_code == 400


def test_a_server_without_tcp_opens_a_loopback_port_for_sessions_alone(tmp_path: Path, target: int) -> None:
    quick = "import probe_agent.server.hosting as hosting; hosting.UNUSED_S = 6.0"
    with serving(tmp_path, first=quick) as server:
        said = probe("-t", f"unix:{server.unix}", "dashboard", "--no-open")
        address, _, code = said.stdout.strip().partition("/#code=")
        assert address.startswith("http://127.0.0.1:")
        stranger = httpx.get(f"{address}/v1/targets", trust_env=False)
        as_another = httpx.get(f"{address}/", headers={"Host": "evil.example"}, trust_env=False)
        with browser(address, code) as page:
            targets = page.get("/v1/targets").json()["targets"]
            page.get("/v1/no/such")
            secrets = [code, page.headers["X-Probe-Key"], page.cookies["probe_session"]]

        def is_closed() -> bool:
            try:
                httpx.get(address, trust_env=False, timeout=5)
            except httpx.ConnectError:
                return True
            return False

        assert stranger.status_code == 401
        assert as_another.status_code in (200, 503)
        assert target in [one["pid"] for one in targets]
        until(is_closed)  # unused for 6 s
        assert probe("-t", f"unix:{server.unix}", "dashboard", "--no-open").returncode == 0  # and opens another one
        server.process.terminate()
        assert server.process.stderr is not None
        printed = server.said + server.process.stderr.read()
    assert not [secret for secret in secrets if secret in printed]


def test_verdicts_on_the_whole_job_are_those_of_the_command_line(server: Served, target: int) -> None:
    with browser(f"http://{server.tcp}", code(server, "read")) as page:
        job = next(one["job"] for one in page.get("/v1/targets").json()["targets"] if one["pid"] == target)
        ranks = page.get("/v1/job/ranks", params={"job": job}).json()
        rows = page.post("/v1/job/query", params={"job": job}, json={"sql": "SELECT 6 * 7 AS answer"}).json()
        failed = page.post("/v1/job/query", params={"job": job}, json={"sql": "SELECT nothing"}).json()
        unknown = page.get("/v1/job/eval")
        injected = page.get("/v1/job/ranks", params={"job": "--help"})

    assert [row["pid"] for row in ranks["answer"]["rows"]] == [target]
    assert rows["answer"]["rows"] == [{"answer": 42}]
    assert failed["exit_code"] != 0
    assert "nothing" in failed["remarks"][0]
    assert unknown.status_code == injected.status_code == 400


@pytest.mark.skipif(not Path(DIST, "index.html").is_file(), reason="nothing has been bundled: no npm here")
def test_the_bundle_is_small_and_asks_no_other_host(server: Served) -> None:
    total = 0
    for file in Path(DIST).glob("*.*"):
        if file.suffix == ".txt":
            continue
        answer = server.ask("GET", f"/dashboard/{file.name}", headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200
        total += int(answer.headers["content-length"])
        again = server.ask("GET", f"/dashboard/{file.name}", headers={"If-None-Match": answer.headers["ETag"]})
        assert again.status_code == 304
    assert total < 1_000_000


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt install chromium")
@pytest.mark.skipif(not Path(DIST, "index.html").is_file(), reason="nothing has been bundled: no npm here")
def test_the_page_opens_in_a_browser_with_every_view_and_asks_no_other_machine(server: Served, target: int) -> None:
    with browsing() as browser:
        link = f"http://{server.tcp}/#code={code(server)}"
        browser.enter(link)
        assert "code=" not in browser.page.url
        names = browser.page.locator("nav a").all_inner_texts()
        for name in names:
            browser.page.get_by_role("link", name=name, exact=True).click()
            browser.wait_for("main h1", name)
        used = browser.page.context.new_page()
        used.goto(link)
        refused = used.locator(".failure").inner_text()

    assert len(names) == 12
    assert browser.hosts == {"127.0.0.1"}
    assert browser.errors == []
    assert "used already" in refused
