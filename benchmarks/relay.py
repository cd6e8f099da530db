"""A slow link in user space: a relay that forwards bytes to a host server with a delay.

    python -m benchmarks.relay ADDRESS:PORT THERE BACK       seconds on the way to it, and on the way back

Prints the address it listens on, and relays until its stdin ends. Bytes keep their order and their gaps; so does the
end of a connection. Accepting a connection takes no time, unlike on a real slow link.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress

__all__: list[str] = []

CHUNK_BYTES = 1 << 16


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward everything from `reader`, including its end, to `writer`."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def arrive() -> None:
        while True:
            due, data = await under_way.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    arriving = asyncio.create_task(arrive())
    data = b" "
    while data:
        try:
            data = await reader.read(CHUNK_BYTES)
        except OSError:
            data = b""
        under_way.put_nowait((loop.time() + delay_s, data))
    await arriving


async def relay(host: str, port: int, there_s: float, back_s: float) -> None:
    """Listen, print the address, and relay."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):  # either end may hang up at any time
            its_reader, its_writer = await asyncio.open_connection(host, port)
            ways = (pass_on(reader, its_writer, there_s), pass_on(its_reader, writer, back_s))
            await asyncio.gather(*ways, return_exceptions=True)
            its_writer.close()
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    own_host, own_port = server.sockets[0].getsockname()
    print(f"{own_host}:{own_port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    address, there, back = sys.argv[1:]
    host, _, port = address.rpartition(":")
    asyncio.run(relay(host, int(port), float(there), float(back)))


if __name__ == "__main__":
    main()
