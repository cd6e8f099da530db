"""A small real server that answers in the shapes of `probe_agent.wire`, to test the client alone.

    python small_server.py unix:/path | 127.0.0.1:0

Prints `ready ADDRESS` on stdout. Its "SQL" is the name of an answer; its "code" is the name of a sequence of events.
It appends the client's actions to the file `$EVENTS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import asdict

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from probe_agent import wire
from probe_agent.errors import ProbeError, QueryFailed

app = FastAPI()


def event(text: str) -> None:
    with open(os.environ.get("EVENTS", os.devnull), "a") as file:
        print(text, file=file, flush=True)


@app.exception_handler(ProbeError)
async def problem(request: Request, error: ProbeError) -> Response:
    answer = wire.ProblemAnswer(wire.Problem(error.message, error.hint, type(error).__name__))
    return JSONResponse(asdict(answer), error.http_status)


def target(pid: int, rank: int) -> wire.TargetInfo:
    return wire.TargetInfo(
        pid=pid, rank=rank, local_rank=rank, world_size=2, host="here", uid=os.getuid(), alive=True, state="running",
        step=41, step_age_s=0.1, age_s=3725.0, command=("python", "train.py"), python="3.11.7", torch="2.13.0",
        version="0.1.0", how="planned", attached_at=0.0, folder="/nowhere",
    )  # fmt: skip


@app.get("/v1/targets")
async def targets() -> wire.TargetList:
    candidates = (
        wire.Candidate(301, 0, "sleeping", 7.0, ("python", "notebook.py")),
        wire.Candidate(302, 0, "running", 8.0, ("python", "pretrain.py")),
    )
    return wire.TargetList((target(201, 0), target(202, 1)), candidates)


@app.get("/v1/tables")
async def tables() -> wire.TableList:
    column = wire.ColumnInfo("duration", "DOUBLE", "s", "how long it took")
    first, last = "2026-11-21T08:00:00", "2026-11-21T09:00:00"
    return wire.TableList(
        (wire.TableInfo("python.steps", "one row a step", "recorded", (column,), 7, 0, 6.0, first, last),), ()
    )


@app.post("/v1/query")
async def query(question: wire.QueryRequest, request: Request, rank: int | None = None) -> Response:
    if question.sql == "slow":
        event("query began")
        while not await request.is_disconnected():
            await asyncio.sleep(0.01)
        event("query hung up")
        return Response()
    if question.sql == "wrong":
        raise QueryFailed("no table python.step", "did you mean python.steps?")
    if question.sql == "many":
        columns = (wire.QueryColumn("number", "BIGINT"), wire.QueryColumn("text", "VARCHAR"))
        rows = tuple([number, "long " * 40] for number in range(question.max_rows))
        answer = wire.QueryResult(columns, rows, True, (f"cut after {len(rows)} rows",), 0.1)
        return JSONResponse(asdict(answer))
    if request.headers["accept"] == "application/vnd.apache.arrow.stream":
        return Response(arrow(), headers={"X-Probe-Notes": json.dumps(["as arrow"])})
    names = (("rank", "BIGINT"), ("loss", "DOUBLE"), ("module", "VARCHAR"))
    rows = ([rank, 0.5, "fc, 1"], [rank, "NaN", ""], [rank, None, None])
    answer = wire.QueryResult(tuple(wire.QueryColumn(*name) for name in names), rows, False, (), 0.001)
    return JSONResponse(asdict(answer))


def arrow() -> bytes:
    import io

    import duckdb
    import nanoarrow
    from nanoarrow.ipc import StreamWriter

    out = io.BytesIO()
    with StreamWriter.from_writable(out) as writer:
        relation = duckdb.connect().sql("SELECT 1 AS step, 'nan'::DOUBLE AS loss UNION ALL SELECT 2, NULL")
        writer.write_stream(nanoarrow.ArrayStream(relation))
    return out.getvalue()


@app.get("/v1/backtrace")
async def backtrace(all: bool = False) -> wire.Backtrace:
    frames = (
        wire.Frame("forward", "/home/me/train.py", 41, 0, "python", "    return self.fc(x)"),
        wire.Frame("<module>", "/home/me/train.py", 90, 1, "python", None),
    )
    threads = [wire.ThreadStack("MainThread", 1, 201, True, True, False, frames)]
    if all:
        threads.append(wire.ThreadStack("pin\x1b[31m", 2, None, False, False, False, frames[1:]))
    return wire.Backtrace(tuple(threads), "recorder", ("taken in 1 ms",))


@app.post("/v1/eval")
async def evaluate(code: wire.EvalRequest) -> StreamingResponse:
    async def lines() -> AsyncIterator[str]:
        if code.code == "raise":
            yield line(done=True, state="failed", traceback="Traceback …\nValueError: no")
        elif code.code == "tick":
            try:
                for tick in range(1000):
                    yield line(stream="stdout", text=f"tick {tick}\n")
                    await asyncio.sleep(0.05)
            finally:
                event("eval cancelled")
        else:
            yield line(note="model was taken from main()")
            yield line(stream="stdout", text="to stdout")
            yield line(stream="stderr", text="to stderr\n")
            yield line(done=True, state="finished", result=repr(code.code))

    def line(**fields: object) -> str:
        return json.dumps(fields) + "\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


@app.post("/v1/complete")
async def complete(request: wire.CompletionRequest) -> wire.Completions:
    return wire.Completions((request.text + "er",))


@app.get("/v1/config")
async def config() -> wire.SettingList:
    setting = wire.SettingInfo("trace.every", "20", "20", "steps", "record one step in so many", "PROBE_TRACE_EVERY")
    return wire.SettingList((setting,))


@app.patch("/v1/config")
async def change(body: wire.SettingChanges) -> wire.SettingList:
    event(json.dumps(body.changes))
    setting = wire.SettingInfo(
        "trace.every", body.changes["trace.every"], "20", "steps", "record one step in so many", ""
    )
    return wire.SettingList((setting,))


def main() -> None:
    address = sys.argv[1]
    if address.startswith("unix:"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address.removeprefix("unix:"))
    else:
        host, _, port = address.rpartition(":")
        listener = socket.socket(socket.AF_INET6 if host.startswith("[") else socket.AF_INET)
        listener.bind((host.strip("[]"), int(port)))
        address = f"{host}:{listener.getsockname()[1]}"
    listener.listen()
    print("ready", address, flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
