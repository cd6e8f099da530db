"""A server that claims to have test.steps, and answers queries incorrectly in a selected way.

    python lying_server.py HOW

Prints `ready ADDRESS` on stdout. HOW is the name of a way: see `answers`.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TABLE = {"name": "test.steps", "doc": "", "kind": "recorded", "rows": 5, "lost": 0}
TABLE.update(dict.fromkeys(("covers", "first", "last")))


def columns(how: str) -> list[dict[str, str]]:
    names = {"host": "VARCHAR", "rank": "BIGINT", "step": "BIGINT"}
    if how == "injects":
        names["step"] = "BIGINT); DROP TABLE test.steps; --"
    return [{"name": name, "type": kind, "unit": "", "meaning": ""} for name, kind in names.items()]


def stream(how: str) -> bytes:
    """Return an Arrow stream that is not the answer."""
    import io

    import duckdb
    import nanoarrow
    from nanoarrow.ipc import StreamWriter

    out = io.BytesIO()
    sql = "SELECT 1 AS one, 2 AS two, 3 AS three" if how == "more columns" else "SELECT 'many' AS g0, 'words' AS a0"
    with StreamWriter.from_writable(out) as writer:
        writer.write_stream(nanoarrow.ArrayStream(duckdb.connect().sql(sql)))
    return out.getvalue()


def answers(how: str) -> bytes:
    """Return the body of the answer to a query."""
    if how in ("more columns", "other types"):
        return stream(how)
    if how == "cut short":
        return stream("other types")[:-200]
    if how == "huge lengths":
        return struct.pack("<Ii", 0xFFFFFFFF, 2**31 - 8) + b"\0" * 64
    return b"<html>not Arrow</html>"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        table = {**TABLE, "columns": columns(sys.argv[1])}
        self._send(json.dumps({"tables": [table], "notes": []}).encode(), {})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if sys.argv[1] == "slow":
            time.sleep(60)
        notes = "}" if sys.argv[1] == "odd notes" else "[]"
        self._send(answers(sys.argv[1]), {"X-Probe-Notes": notes})

    def _send(self, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(f"ready 127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
