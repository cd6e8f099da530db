"""Simulated hosts: the rings of targets that never ran, and real host servers that answer for them.

    python -m benchmarks.simulated BASE ADDRESS…     serves BASE/0, BASE/1, … at the addresses, one after the other

With `--canned` in front, a statement to one rank is answered with what another one has answered to it before: what a
command costs by itself can then be seen at a size at which this machine could not run the statements.

With `--recorders`, recorders answer for live tables with rows that tell nothing, as many as a model of some layers has,
or none.

Prints `ready` once all of them listen, and ends when its stdin does. It keeps the targets' folders open, so that they
count as living ones in another PID namespace: several ended targets are not queried together.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe_agent.recorder.ring import folder
from probe_agent.recorder.ring.table import Table
from probe_agent.recorder.ring.writer import RingWriter
from probe_agent.sql.tables.declarations import live_tables

from .http_query import free_port
from .process import plain_environment, tree_cpu_s

__all__ = ["JOB", "SERVERS_A_PROCESS", "add_target", "addresses_of", "serve", "serving", "tell_peers"]

#: The name of the job that all these targets are ranks of.
JOB = "simula"
SERVERS_A_PROCESS = 16
#: Live tables of a target that have so many rows each; the others have none: a call that is awaited would be news.
LIVE = frozenset(("process.env", "python.containers", "torch.gradients", "torch.modules", "torch.parameters"))
LIVE_ROWS = 60

Rows = Sequence[tuple[object, ...]]


def add_target(
    base: Path,
    host: str,
    pid: int,
    rank: int,
    world_size: int,
    tables: Sequence[tuple[type[Table], Rows]],
    roles: Mapping[str, int] | None = None,
) -> Path:
    """Make the folder of a target on a host that keeps its targets in `base`, with these rows in its rings."""
    users = base / f"probe-{os.getuid()}"
    users.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = users / folder.folder_name(pid, 1)
    own.mkdir(mode=0o700)
    coordinates = {"host": host, "pid": pid, "rank": rank, "world_size": world_size, "job": JOB}
    for table, rows in tables:
        path = str(own / folder.ring_name(table.name))
        writer = RingWriter(path, table, coordinates, capacity=max(1, len(rows)) * 16 // 15 + 2, strings_bytes=1 << 14)
        writer.append(rows)
        writer.close()
    identity = {**coordinates, "host_pid": pid, "start_ticks": 1, "roles": dict(roles or {})}
    identity["attached_at"] = float(pid)
    (own / folder.TARGET).write_text(json.dumps(identity))
    return own


def tell_peers(folders: Sequence[Path], ranks: Sequence[tuple[str, int, int, str]]) -> None:
    """Have these targets know, as through the store of their job, host, PID, rank and server of all its ranks."""
    peers = [
        {"rank": rank, "host": host, "pid": pid, "attached_at": float(pid), "address": address, "note": ""}
        for host, pid, rank, address in ranks
    ]
    for own in folders:
        (own / "peers.json").write_text(json.dumps({"peers": peers}))


def addresses_of(num_hosts: int) -> list[str]:
    """Return an address for the server of each host."""
    port = free_port()
    return [f"127.0.{1 + host // 250}.{1 + host % 250}:{port}" for host in range(num_hosts)]


@contextmanager
def serving(
    base: Path, addresses: Sequence[str], *, is_canned: bool = False, with_recorders: bool = False
) -> Iterator[Callable[[], float]]:
    """Run host servers at these addresses; yield a function that returns the CPU seconds used by all and by their query
    workers."""
    with ExitStack() as running:
        servers = []
        for first in range(0, len(addresses), SERVERS_A_PROCESS):
            mine = addresses[first : first + SERVERS_A_PROCESS]
            folder = str(base / str(first // SERVERS_A_PROCESS))
            options = [*["--canned"] * is_canned, *["--recorders"] * with_recorders]
            command = [sys.executable, "-m", "benchmarks.simulated", *options, folder, *mine]
            server = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain_environment()
            )
            running.callback(server.wait)
            running.callback(server.terminate)
            servers.append(server)
        for server in servers:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
        yield lambda: sum(tree_cpu_s(server.pid) for server in servers)


async def serve(base: Path, addresses: Sequence[str], *, is_canned: bool, with_recorders: bool) -> None:
    """Answer at every address for the targets of one host, until stdin ends."""
    import uvicorn

    from probe_agent.server.access.roles import Caller, OwnProcess
    from probe_agent.server.app import create_app
    from probe_agent.sql.query_engine import QueryEngine
    from probe_agent.targets import TargetDirectory

    from .canned import CannedEngine

    class Everybody(OwnProcess):
        def admit(self, scope: Any) -> Caller:  # ASGI's dictionary
            """Under any name: one that is loopback would not be believed of another host."""
            return replace(super().admit(scope), has_token=True)

    servers = []
    engine = (
        CannedEngine() if is_canned else QueryEngine()
    )  # one for all: a process for each that forks workers would be too much for this machine
    for at, address in enumerate(addresses):
        for own in (base / str(at)).glob("probe-*/*"):
            folder.hold(str(own))
            if with_recorders:
                await asyncio.start_unix_server(answer_for_recorder, own / folder.CONTROL)
        name, _, port = address.rpartition(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((name, int(port)))
        listener.listen(128)
        app = create_app(TargetDirectory((str(base / str(at)),)), access=Everybody(), engine=engine)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off"))
        servers.append((server, asyncio.create_task(server.serve(sockets=[listener]))))
    while not all(server.started for server, _ in servers):
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server, _ in servers:
        server.should_exit = True
    await asyncio.gather(*(task for _, task in servers))


async def answer_for_recorder(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request to the control socket of a target."""
    operation = json.loads(await reader.readline())["op"]
    tables = [table for table in live_tables().values() if getattr(table, "operation", None) == operation]
    if not tables:
        answer: dict[str, object] = {"error": {"message": f"a simulated target does not know {operation}"}}
    else:
        of_kind = {"int": 0, "float": 0.0, "text": None, "bool": False, "time": None}
        columns = tables[0].columns[1:]
        row = [of_kind.get(column.kind) for column in columns]
        answer = {
            "columns": [column.name for column in columns],
            "rows": [row] * (LIVE_ROWS if tables[0].name in LIVE else 0),
            "notes": [],
        }
    writer.write(json.dumps(answer).encode() + b"\n")
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--canned", action="store_true")
    parser.add_argument("--recorders", action="store_true")
    parser.add_argument("base", type=Path)
    parser.add_argument("addresses", nargs="+")
    args = parser.parse_args()
    asyncio.run(serve(args.base, args.addresses, is_canned=args.canned, with_recorders=args.recorders))


if __name__ == "__main__":
    main()
