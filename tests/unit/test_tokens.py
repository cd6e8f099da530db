"""Token files: where they are created and found, and which ones are ignored."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from probe_agent.errors import BadRequest
from probe_agent.tokens import TOKEN, Tokens, given_token, kept_token, server_tokens


def environ(folder: Path, **more: str) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(folder), **more}


def test_the_first_start_makes_two_tokens_for_us_alone(tmp_path: Path) -> None:
    made = server_tokens(environ(tmp_path))
    again = server_tokens(environ(tmp_path))

    assert made == again
    assert TOKEN.fullmatch(made.control)
    assert made.read not in (None, made.control)
    for name in ("token", "token.read"):
        assert stat.S_IMODE((tmp_path / "probe" / name).stat().st_mode) == 0o600
        assert str(tmp_path / "probe" / name) in made.source
    assert stat.S_IMODE((tmp_path / "probe").stat().st_mode) == 0o700
    assert sorted(os.listdir(tmp_path / "probe")) == ["token", "token.read"]


def test_servers_that_start_at_once_agree(tmp_path: Path) -> None:
    code = "from probe_agent.tokens import server_tokens; print(server_tokens().control)"
    command = [sys.executable, "-c", code]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environ(tmp_path)})
        for _ in range(4)
    ]

    said = {process.communicate(timeout=30)[0].strip() for process in started}

    assert said == {server_tokens(environ(tmp_path)).control}
    assert sorted(os.listdir(tmp_path / "probe")) == ["token", "token.read"]


def test_the_command_line_finds_the_token_of_its_user_and_makes_none(tmp_path: Path) -> None:
    nothing = kept_token(environ(tmp_path))
    made = server_tokens(environ(tmp_path))
    found = kept_token(environ(tmp_path))
    (tmp_path / "probe" / "token").unlink()
    lesser = kept_token(environ(tmp_path))

    assert (nothing, found, lesser) == (None, made.control, made.read)


def test_a_token_may_be_given_as_text_or_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("m" * 20 + "\n")
    (tmp_path / "mine").chmod(0o600)

    assert server_tokens({"PROBE_TOKEN": "t" * 20}) == Tokens("t" * 20, None, "the token is that in PROBE_TOKEN")
    assert server_tokens({"PROBE_TOKEN": "t" * 20, "PROBE_READ_TOKEN": "u" * 20}).read == "u" * 20
    assert given_token({"PROBE_TOKEN": "t" * 20}) == "t" * 20
    assert server_tokens({"PROBE_TOKEN_FILE": str(tmp_path / "mine")}).control == "m" * 20
    assert kept_token({"PROBE_TOKEN_FILE": str(tmp_path / "mine")}) == "m" * 20


@pytest.mark.parametrize("token", ["short", "with a space in it, too", "line\nline\nline\nline", "x" * 513])
def test_an_invalid_token_is_refused_without_showing_it(token: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequest) as refused:
        server_tokens({"PROBE_TOKEN": token})

    assert token not in str(refused.value)


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_file_that_others_can_read_or_write_is_not_believed(mode: int, tmp_path: Path) -> None:
    server_tokens(environ(tmp_path))
    (tmp_path / "probe" / "token").chmod(mode)

    for read in (server_tokens, kept_token):
        with pytest.raises(BadRequest, match="not ours alone"):
            read(environ(tmp_path))


def test_a_missing_named_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="no such file"):
        kept_token({"PROBE_TOKEN_FILE": str(tmp_path / "none")})


def test_a_folder_without_room_for_a_token_is_reported() -> None:
    with pytest.raises(BadRequest, match="cannot make a token in /proc/probe/token"):
        server_tokens({"XDG_CONFIG_HOME": "/proc"})
