"""A gevent program: everything is patched, greenlets talk over sockets while one of them counts.

Holds: it computes the same, no signal is blocked, no greenlet of ours is in its hub.
"""

from gevent import monkey

monkey.patch_all()

import socket  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402

import gevent  # noqa: E402
from truth import Truth  # noqa: E402

STEPS = 60
truth = Truth(STEPS)


def serve(listener):
    connection, _ = listener.accept()
    with connection, connection.makefile("rwb") as stream:
        for line in stream:
            stream.write(str(int(line) ** 2 % 1009).encode() + b"\n")
            stream.flush()


def ask(port):
    total = 0
    with socket.create_connection(("127.0.0.1", port)) as connection, connection.makefile("rwb") as stream:
        for number in range(STEPS):
            stream.write(str(number).encode() + b"\n")
            stream.flush()
            total += int(stream.readline())
            time.sleep(0.005)
            truth.step()
    return total


listener = socket.create_server(("127.0.0.1", 0))
server = gevent.spawn(serve, listener)
asking = gevent.spawn(ask, listener.getsockname()[1])
gevent.joinall([asking, server], raise_error=True)
print("sum", asking.value, "threads", len(threading.enumerate()))
with open("/proc/self/status") as status:
    print([line.split()[1] for line in status if line.startswith(("SigBlk", "SigIgn"))])
truth.tell(asking.value)
