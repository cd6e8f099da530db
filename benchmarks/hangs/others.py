"""What other tools say of the same job: py-spy, pystack, torch's debug server with its analyzer, probing."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

__all__ = ["OTHERS", "ask_others", "install_others"]

OTHERS = ("py-spy", "pystack", "torch's debug server", "probing")
PACKAGES = ("py-spy", "pystack", "probing==0.2.4")
#: A tool that takes longer is killed.
TOOL_S = 20.0
#: What a frame of the job looks like in any of them.
_FRAME = re.compile(
    r"File \"[^\"]*hangs/\w+\.py\", line (?P<line>\d+), in (?P<func>\w+)|(?P<f>\w+) \(\S*hangs/\w+\.py:(?P<l>\d+)\)"
)
_ANALYZER = """
import sys, json
from torch.distributed.flight_recorder.components.builder import build_db
from torch.distributed.flight_recorder.components.config_manager import JobConfig
args = JobConfig().parse_args(args=[])
args.allow_incomplete_ranks = True
dumps = {f"rank{rank}.json": {"rank": rank, "host_name": "", **dump} for rank, dump in json.load(sys.stdin).items()}
build_db(dumps, args, next(iter(dumps.values()))["version"])
"""


def install_others(environment: Path) -> None:
    """Make an environment with these tools; one that is there is kept."""
    if not (environment / "bin/probing").exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
        pip = [str(environment / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, *PACKAGES], check=True)


def ask_others(folder: Path, pid: int, num_ranks: int, environment: Path) -> tuple[str, ...]:
    """Return what each says of the rank that is to blame, with the seconds it took."""
    tools = environment / "bin"
    py_spy = [str(tools / "py-spy"), "dump", "--nonblocking", "--pid", str(pid)]
    return (
        _stack(py_spy, innermost=0),
        _stack([str(tools / "pystack"), "remote", str(pid)], innermost=-1),
        _debug_server(folder, num_ranks),
        _probing(str(tools / "probing"), pid),
    )


def _run(command: Sequence[str]) -> tuple[str, float]:
    began = monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S)
        text = done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        text = f"no answer in {TOOL_S:.0f} s"
    return text, monotonic() - began


def _stack(command: Sequence[str], *, innermost: int) -> str:
    text, took_s = _run(command)
    main = text.partition("MainThread")[2] or text if innermost == 0 else text
    found = list(_FRAME.finditer(main))
    if not found:
        return f"{_last_line(text)} ({took_s:.1f} s)"
    told = found[innermost]
    return f"{told['func'] or told['f']}, line {told['line'] or told['l']} ({took_s:.1f} s)"


def _probing(program: str, pid: int) -> str:
    text, took_s = _run([program, "-t", str(pid), "inject"])
    if "Failed" in text or "no answer" in text:
        failure = next((line for line in text.splitlines() if "Failed" in line), text)
        return f"{failure[:80]} ({took_s:.1f} s)"
    return _stack([program, "-t", str(pid), "query", "SELECT func, file, lineno FROM python.backtrace"], innermost=0)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:80] if lines else "nothing"


def _debug_server(folder: Path, num_ranks: int) -> str:
    """Ask the server in each rank for its Flight Recorder, and torch's analyzer what is wrong."""
    began = monotonic()
    dumps, silent = {}, []
    for rank in range(num_ranks):
        try:
            dumps[rank] = _post(folder / f"debug_{rank}", "fr_trace_json")
        except (OSError, ValueError):
            silent.append(rank)
    if not dumps:
        return "no rank answers"
    done = subprocess.run(
        [sys.executable, "-c", _ANALYZER], input=json.dumps(dumps), capture_output=True, text=True, timeout=120
    )
    lines = (done.stderr if done.returncode else done.stdout + done.stderr).strip().splitlines()
    said = lines[-1][:80] if lines else "nothing is wrong"
    without = f"; no answer from {silent}" if silent else ""
    return f"{'analyzer fails: ' if done.returncode else ''}{said}{without} ({monotonic() - began:.1f} s)"


def _post(path: Path, handler: str) -> object:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5)
        client.connect(str(path))
        client.sendall(f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
        data = b""
        while part := client.recv(65_536):
            data += part
    return json.loads(data.partition(b"\r\n\r\n")[2])
