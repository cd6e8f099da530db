"""Valid endpoints, and messages about the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe_agent.errors import BadRequest
from probe_cli.endpoint import Endpoint, LocalProcess, TcpServer, TlsServer, UnixServer, parse_endpoint


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("4121", LocalProcess(4121)),
        ("127.0.0.1:8080", TcpServer("127.0.0.1", 8080)),
        ("node-17.cluster:8080/62", TcpServer("node-17.cluster", 8080, 62)),
        ("http://localhost:8080/", TcpServer("localhost", 8080)),
        ("[::1]:8080", TcpServer("::1", 8080)),
        ("https://node-17:8080/3", TlsServer("node-17", 8080, 3)),
        ("[2001:db8::7]:8080/3", TcpServer("2001:db8::7", 8080, 3)),
        ("unix:/run/probe/host.sock", UnixServer("/run/probe/host.sock")),
        ("unix:/run/probe/host.sock//5", UnixServer("/run/probe/host.sock", 5)),
        ("node:8080/kfm", TcpServer("node", 8080, job="kfm")),
        ("https://node:8080/kfmcga/3", TlsServer("node", 8080, 3, job="kfmcga")),
        ("unix:/a/b//kfmcga/3", UnixServer("/a/b", 3, job="kfmcga")),
        ("node:8080/pid=4121", TcpServer("node", 8080, pid=4121)),
        ("unix:/run/probe/host.sock//pid=4121", UnixServer("/run/probe/host.sock", pid=4121)),
    ],
)
def test_an_endpoint_says_what_it_names(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text",
    ["4121", "127.0.0.1:8080/2", "[::1]:80", "[::1]:8080/1", "unix:/a/b", "unix:/a//4", "h:1/pid=7", "unix:/a//pid=7",
     "h:1/kfmcga", "h:1/kfmcga/3", "unix:/a//kfmcga", "unix:/a//kfmcga/0"],
)  # fmt: skip
def test_an_endpoint_prints_as_it_is_written(text: str) -> None:
    assert str(parse_endpoint(text)) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("localhost", "no port"),
        ("::1:8080", r"\[::1\]:8080"),
        ("127.0.0.1:0", "invalid port"),
        ("127.0.0.1:70000", "invalid port"),
        ("https://host", "'host' is not an endpoint"),
        ("https://4121", "endpoint"),
        ("unix:host.sock", "absolute"),
        ("unix:/a//B", "not a rank"),
        ("h:1/kfm3", "not a rank"),
        ("h:1/3/kfm", "not a rank"),
        ("h:1/kfm/kfm", "not a rank"),
        ("unix:/a//pid=b", "not a rank"),
        ("-5", "not an endpoint"),
        ("", "not an endpoint"),
        ("/tmp/no-such-report.zip", "no such file or folder"),
        (__file__, "the file is not a report"),
    ],
)
def test_an_invalid_endpoint_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(BadRequest, match=reason):
        parse_endpoint(text)


def test_a_folder_without_a_target_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="not the folder of a target"):
        parse_endpoint(str(tmp_path))
