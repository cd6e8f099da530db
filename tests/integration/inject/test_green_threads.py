"""A job that replaces threads, locks and sockets with its own keeps them, and the recorder keeps the interpreter's."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until

from probe_agent import inject

from .conftest import ask, detach
from .programs import program

#: Each says `ready`, and answers a line of its input with what it sees: how far its own work has come, and more.
ANSWER = """
import os, sys, time
def masks():
    found = {}
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/status") as status:
            found[int(tid)] = next(line.split()[1] for line in status if line.startswith("SigBlk"))
    return found
"""
GEVENT = """
import gevent, signal, threading, _thread, select
def work():
    global count
    while True:
        count += 1
        gevent.sleep(0.001)
count, signals = 0, []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
"""
SERVE = """
def replaced():
    import _thread, select, socket
    found = (_thread.start_new_thread, _thread.allocate_lock, time.sleep, select.select, socket.socket)
    return [str(getattr(one, "__module__", "")) for one in found]
def serve():
    import json, gevent.os
    print("ready", flush=True)
    while line := gevent.os.tp_read(0, 100):
        if line == b"patch\\n":
            from gevent import monkey
            monkey.patch_all()
        os.kill(os.getpid(), signal.SIGUSR1)
        gevent.sleep(0.02)
        said = {"count": count, "signals": len(signals), "masks": masks(), "replaced": replaced()}
        print(json.dumps({**said, "greenlets": gevent.get_hub().loop.activecnt}), flush=True)
gevent.spawn(work)
serve()
"""
PATCHED = ANSWER + "from gevent import monkey\nmonkey.patch_all()\n" + GEVENT + SERVE
NOT_YET_PATCHED = ANSWER + GEVENT + SERVE

EVENTLET = (
    ANSWER
    + """
import warnings
warnings.simplefilter("ignore")  # it says of itself that it is deprecated
import eventlet
eventlet.monkey_patch()
import json, signal
from eventlet import tpool
count, signals = 0, []
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
def work():
    global count
    while True:
        count += 1
        eventlet.sleep(0.001)
def read():
    from eventlet.green import os as green
    return green.read(0, 100)
eventlet.spawn(work)
print("ready", flush=True)
while read():
    os.kill(os.getpid(), signal.SIGUSR1)
    eventlet.sleep(0.02)
    import _thread
    replaced = [_thread.start_new_thread.__module__]
    said = {"count": count, "signals": len(signals), "masks": masks(), "replaced": replaced}
    print(json.dumps(said), flush=True)
"""
)
LOOP = """
async def work():
    global count
    while True:
        count += 1
        await sleep(0.001)
count, signals = 0, []
import json, signal
signal.signal(signal.SIGUSR1, lambda *_: signals.append(1))
async def serve(read):
    while await read():
        os.kill(os.getpid(), signal.SIGUSR1)
        await sleep(0.02)
        print(json.dumps({"count": count, "signals": len(signals), "masks": masks(), "replaced": []}), flush=True)
    os._exit(0)
"""
UVLOOP = (
    ANSWER
    + LOOP
    + """
import asyncio, uvloop
sleep = asyncio.sleep
async def main():
    reading = asyncio.get_running_loop().run_in_executor
    task = asyncio.create_task(work())
    print("ready", flush=True)
    await serve(lambda: reading(None, os.read, 0, 100))
uvloop.run(main())
"""
)
TRIO = (
    ANSWER
    + LOOP
    + """
import trio
from trio import sleep
async def main():
    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        print("ready", flush=True)
        await serve(lambda: trio.to_thread.run_sync(os.read, 0, 100))
trio.run(main)
"""
)


def said(process: subprocess.Popen[str], line: str = "go on") -> dict[str, Any]:
    """Read the program's answer: its work continues, it got its signal, and none of its threads blocks any."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    return answer


@contextmanager
def running(code: str, **how: Any) -> Iterator[subprocess.Popen[str]]:
    with program(code, stdin=subprocess.PIPE, **how) as process:
        yield process


def asked(folder: Path, **request: object) -> list[dict[str, Any]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(folder / "control.sock"))
        connection.sendall(json.dumps(request).encode() + b"\n")
        return [json.loads(line) for line in connection.makefile("rb")]


def holds(
    process: subprocess.Popen[str], attached: inject.Attached, before: dict[str, Any], lines: Sequence[str]
) -> None:
    """Check that the program works as before after attach, query and detach."""
    tids = {tid for tid, mask in before["masks"].items() if mask == before["masks"][str(process.pid)]}
    masks = {tid: before["masks"][tid] for tid in tids}
    for line in lines:
        during = said(process, line)
        assert during["count"] > before["count"]
        assert during["signals"] > before["signals"]
        assert {tid: mask for tid, mask in during["masks"].items() if tid in tids} == masks
    stacks = ask(attached.folder, "stacks", process.pid)["threads"]
    assert [thread["tid"] for thread in stacks if thread["is_main"]] == [process.pid]
    answers = asked(attached.folder, op="eval", code="count > 0", timeout=10)
    assert any("True" in json.dumps(answer) for answer in answers), answers

    detach(attached)

    until(lambda: not attached.folder.exists())
    after = said(process)
    assert after["signals"] == during["signals"] + 1
    assert after["count"] > during["count"]
    assert {tid: mask for tid, mask in after["masks"].items() if tid in tids} == masks
    assert set(after["masks"]) <= set(during["masks"])
    assert after["replaced"] == during["replaced"]
    assert process.poll() is None


def needs(package: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.situation("gevent, eventlet, trio, uvloop", "works: our threads, locks and sockets are the interpreter's")
@pytest.mark.parametrize(
    ("package", "code"),
    [("gevent", PATCHED), ("eventlet", EVENTLET), ("trio", TRIO), ("uvloop", UVLOOP)],
    ids=["gevent", "eventlet", "trio", "uvloop"],
)
def test_a_job_with_threads_of_its_own_making(package: str, code: str) -> None:
    needs(package)
    with running(code) as process:
        before = said(process)
        for _ in range(2):  # the second time it finds what the first has left
            attached = inject.attach(process.pid)

            holds(process, attached, before, ["go on"])
    assert package not in ("gevent", "eventlet") or package in before["replaced"][0]


@pytest.mark.situation("gevent's `patch_all()` after attach", "works: what we have is ours alone")
def test_a_job_that_is_patched_while_we_are_there() -> None:
    needs("gevent")
    with running(NOT_YET_PATCHED) as process:
        before = said(process)
        attached = inject.attach(process.pid)

        holds(process, attached, before, ["go on", "patch", "go on"])


@pytest.mark.situation("gevent, and the recorder started with the job", "works")
@pytest.mark.parametrize("first", ["start", "patch"])
def test_a_planned_start(first: str) -> None:
    needs("gevent")
    start = "import probe_agent; probe_agent.start()\n"
    code = start + PATCHED if first == "start" else PATCHED.replace("gevent.spawn", start + "gevent.spawn")
    with running(code) as process:
        until(lambda: any(Path("/dev/shm").glob(f"probe-*/{process.pid}-*/target.json")), 30.0)
        attached = inject.attach(process.pid)
        assert attached.already

        holds(process, attached, said(process), ["go on"])


TRAINING = """
from gevent import monkey
monkey.patch_all()
import hashlib, sys, gevent, torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
ticks = 0
def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.002)
gevent.spawn(tick)
print("ready", flush=True)
sys.stdin.readline()
losses = hashlib.sha256()
for step in range(300):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 16)).square().mean()
    loss.backward()
    optimizer.step()
    losses.update(str(loss.item()).encode())
    if step == 200:
        print("nearly", flush=True)
        sys.stdin.readline()
    gevent.sleep(0.001)
print(losses.hexdigest(), torch.rand(1).item(), ticks > 100, flush=True)
"""


@pytest.mark.long
@pytest.mark.torch
@pytest.mark.situation("a job under gevent", "works; the losses are the same")
def test_a_job_under_gevent_is_left_as_it_is() -> None:
    needs("gevent")
    needs("torch")

    def trained(*, attach: bool) -> tuple[str, list[dict[str, Any]]]:
        with running(TRAINING) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            attached = inject.attach(process.pid) if attach else None
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "nearly\n"
            answers = asked(attached.folder, op="eval", code="torch.is_tensor(loss)", timeout=10) if attached else []
            if attached:
                detach(attached)
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline(), answers

    alone, _ = trained(attach=False)
    recorded, answers = trained(attach=True)

    assert "True" in json.dumps(answers)
    assert recorded == alone
    assert alone.endswith("True\n")
