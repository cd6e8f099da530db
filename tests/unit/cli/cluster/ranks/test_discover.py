"""Lists of hosts behind `-t`, and messages about bad ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from probe_agent.errors import BadRequest, NoAnswer
from probe_cli.cluster.ranks.discover import endpoints_of, expand, split
from probe_cli.main import run


def texts(text: str) -> list[str]:
    return [str(endpoint) for endpoint in endpoints_of(text)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[1-3]:80", ["node1:80", "node2:80", "node3:80"]),
        ("node[08-11]:80", ["node08:80", "node09:80", "node10:80", "node11:80"]),
        ("node[1-2,7]:80", ["node1:80", "node2:80", "node7:80"]),
        ("node[9,1]:80", ["node9:80", "node1:80"]),
        ("r[1-2]n[01,3].x:80", ["r1n01.x:80", "r1n3.x:80", "r2n01.x:80", "r2n3.x:80"]),
        ("10.0.[0-1].[1-2]:80", ["10.0.0.1:80", "10.0.0.2:80", "10.0.1.1:80", "10.0.1.2:80"]),
        ("node[1-2]:80/3", ["node1:80/3", "node2:80/3"]),
        ("node[1,1-2]:80", ["node1:80", "node2:80"]),
        ("[::1]:80", ["[::1]:80"]),
        ("[2001:db8::[1-2]]:80", None),
        ("4121", ["4121"]),
    ],
)
def test_a_list_names_its_hosts_in_order_and_once(text: str, names: list[str] | None) -> None:
    if names is None:
        with pytest.raises(BadRequest):
            endpoints_of(text)
    else:
        assert texts(text) == names


def test_any_list_has_as_many_names_as_its_ranges_count() -> None:
    chance = random.Random(5)
    for _ in range(200):
        firsts = [chance.randrange(0, 200) for _ in range(chance.randrange(1, 3))]
        widths = [chance.randrange(1, 6) for _ in firsts]
        lasts = [first + chance.randrange(0, 20) for first in firsts]
        text = "n" + "x".join(
            f"[{first:0{width}}-{last}]" for first, last, width in zip(firsts, lasts, widths, strict=True)
        )

        names = expand(text)

        num = 1
        for first, last in zip(firsts, lasts, strict=True):
            num *= last - first + 1
        assert len(set(names)) == len(names) == num
        assert names[0] == "n" + "x".join(f"{f:0{w}}" for f, w in zip(firsts, widths, strict=True))
        assert all(len(name.removeprefix("n").split("x")) == len(firsts) for name in names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node[]:80", "brackets are empty"),
        ("node[3-1]:80", "reversed"),
        ("node[1-3:80", "unbalanced bracket"),
        ("node1-3]:80", "unbalanced bracket"),
        ("node[a-c]:80", "neither a number nor a range"),
        ("node[1,,2]:80", "neither a number nor a range"),
        ("node[1-]:80", "neither a number nor a range"),
        ("node[1-10001]:80", "10,001 hosts"),
        ("n[1-200]x[1-200]:80", "40,000 hosts"),
        ("n[1-999999999999]:80", "hosts"),
        ("node[1-3]", "not an endpoint"),
        ("node[1-3]:99999", "invalid port"),
        ("slurm:", "invalid port"),
        ("slurm:8080", "SLURM_JOB_NODELIST is not set"),
        ("dns:8080", "a name and a port"),
        ("dns:name", "a name and a port"),
        ("@/nowhere/hosts", "cannot read"),
    ],
)
def test_a_bad_list_is_refused_with_the_reason(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.delenv("SLURM_NODELIST", raising=False)

    with pytest.raises(BadRequest, match=said):
        endpoints_of(text)


def test_a_file_has_one_endpoint_or_list_a_line(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# all of them\nnode[1-2]:80\n\n  other:81/3   # the odd one\nnode1:80\n")

    assert texts(f"@{file}") == ["node1:80", "node2:80", "other:81/3"]


@pytest.mark.parametrize(
    ("content", "said"), [("# none\n", "names no endpoint"), ("@other\n", "cannot hold another list")]
)
def test_a_file_without_hosts_or_with_a_file_in_it_is_refused(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "hosts").write_text(content)

    with pytest.raises(BadRequest, match=said):
        endpoints_of(f"@{tmp_path}/hosts")


def test_the_hosts_of_a_slurm_job_are_read_as_slurm_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[01-02,05],login1,r[1-2]n[3,4]")

    assert texts("slurm:80") == [
        f"{host}:80" for host in ("gpu01", "gpu02", "gpu05", "login1", "r1n3", "r1n4", "r2n3", "r2n4")
    ]


def test_a_name_stands_for_all_its_addresses() -> None:
    found = texts("dns:localhost:80")

    assert set(found) <= {"127.0.0.1:80", "[::1]:80"}
    assert found


def test_a_name_without_addresses_is_no_answer() -> None:
    with pytest.raises(NoAnswer, match="no address"):
        endpoints_of("dns:no-such-name.invalid:80")


def test_commas_in_brackets_do_not_end_an_endpoint() -> None:
    assert split("node[1,3]:80, other:81 4121") == ["node[1,3]:80", "other:81", "4121"]


def test_a_list_may_stand_before_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["127.0.0.[2-3]:1", "tables", "--timeout", "5"])

    assert code == 4
    assert "not: 127.0.0.2:1, 127.0.0.3:1" in capsys.readouterr().err
