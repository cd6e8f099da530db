"""Programs to attach to: `python situations.py NAME STOP [SECONDS]`, on Python 3.9 and later.

Each prints `ready`, does what its name says, and then prints its result as JSON: working programs run until the
file STOP exists, waiting ones for SECONDS.
"""

import ctypes
import gc
import hashlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from contextlib import suppress

STOP = sys.argv[2]
SECONDS = float(sys.argv[3]) if len(sys.argv) > 3 else 2.0
libc = ctypes.CDLL(None, use_errno=True)
SAY_READY_THEMSELVES = (
    *("torch_sum", "numpy_sum"),
    *("signals", "every_signal", "children", "interrupts"),
    *("without_gil", "with_gil", "no_descriptors"),
)

num_asked = 0
is_over = False


def goes_on(every=64):
    """Return whether STOP does not exist yet; one call in `every` checks."""
    global num_asked, is_over
    num_asked += 1
    if not num_asked % every:
        is_over = is_over or os.path.exists(STOP)
    return not is_over


def in_a_while(code):
    """Start a child that writes to or reads from its standard streams after SECONDS."""
    return [sys.executable, "-c", f"import time, sys; time.sleep({SECONDS}); {code}"]


# Work


def working(is_right, every=64):
    """Run `is_right` all the time, and count how often it was not."""
    rounds = wrong = 0
    while goes_on(every):
        rounds += 1
        wrong += not is_right()
    return {"rounds": rounds, "wrong": wrong}


def spin():
    return working(lambda: sum(range(500)) == 124_750)


def torch_sum():
    import torch

    torch.set_num_threads(1)
    numbers = torch.ones(200_000)
    say_ready()
    return working(lambda: float(numbers.sum()) == 200_000.0)


def numpy_sum():
    import numpy

    numbers = numpy.ones(200_000, numpy.float32)
    say_ready()
    return working(lambda: float(numbers.sum()) == 200_000.0)


def float_sum():
    numbers = [0.1 * number for number in range(20_000)]
    right = sum(numbers)
    return working(lambda: sum(numbers) == right)


def malloc():
    return working(lambda: len([bytearray(600 + n % 4000) for n in range(200)]) == 200)


def fork():
    def child_ends_well():
        child = os.fork()
        if child == 0:
            os._exit(7)
        return os.waitpid(child, 0)[1] == 7 << 8

    return working(child_ends_well)


def dlopen():
    import _ctypes

    return working(lambda: _ctypes.dlclose(_ctypes.dlopen("libutil.so.1", os.RTLD_NOW)) is None)


def collect():

    def knot_is_found():
        knot = [[] for _ in range(100)]
        knot.append(knot)
        del knot
        return gc.collect() >= 1

    gc.disable()  # else a collection of its own may be first
    return working(knot_is_found)


def naps():
    """Wait for 0.2 s, again and again: each wait must take its full time and return nothing."""
    lock = threading.Lock()
    lock.acquire()
    reading, _ = os.pipe()
    waits = [
        lambda: time.sleep(0.2) is None,
        lambda: lock.acquire(timeout=0.2) is False,
        lambda: select.select([reading], [], [], 0.2) == ([], [], []),
    ]

    def is_as_long():
        began = time.monotonic()
        return waits[num_asked % 3]() and time.monotonic() - began >= 0.2

    return working(is_as_long, every=1)


# Signals


IN_BURSTS = """
import os, sys, time
pid, stop, number = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
num_sent = 0
while os.getppid() == pid and not os.path.exists(stop):
    for _ in range(10):
        os.kill(pid, number)
    num_sent += 10
    time.sleep(0.002)
print(num_sent)
"""
ONE_BY_ONE = """
import os, select, signal, sys
pid, stop = int(sys.argv[1]), sys.argv[2]
num_sent = num_lost = 0
while os.getppid() == pid and not os.path.exists(stop):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        os.kill(pid, number)
        num_sent += 1
        num_lost += not select.select([0], [], [], 5)[0] or os.read(0, 64) != bytes([number])
print(num_sent, num_lost)
"""


def sender(code, *arguments, **how):
    """Start a child that sends us signals until STOP exists, and then reports how many."""
    command = [sys.executable, "-c", code, str(os.getpid()), STOP, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **how)


def soon(condition):
    """Return whether it becomes true within 5 s."""
    until = time.monotonic() + 5.0
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return condition()


def signals():
    """Count every real-time signal at the lowest level, with a Python handler every millisecond on top."""
    sending = sender(IN_BURSTS, signal.SIGRTMIN + 0)
    ours, wakeup = socket.socketpair()
    wakeup.setblocking(False)
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    wakeup.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ticks = num_counted = 0

    def tick(*_):
        nonlocal ticks
        ticks += 1

    def count():
        nonlocal num_counted
        with suppress(BlockingIOError):
            num_counted += ours.recv(1 << 16).count(signal.SIGRTMIN)
        return num_counted

    signal.signal(signal.SIGALRM, tick)
    signal.signal(signal.SIGRTMIN, lambda *_: None)
    signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=True)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    say_ready()
    while goes_on():
        count()
    num_sent = int(sending.communicate()[0])
    ticks_before = ticks
    ticks_on = soon(lambda: ticks > ticks_before)
    signal.setitimer(signal.ITIMER_REAL, 0, 0)
    soon(lambda: count() == num_sent)
    signal.set_wakeup_fd(-1)
    ours.close()
    wakeup.close()
    return {"rounds": num_sent, "wrong": abs(num_sent - num_counted) + (not ticks_on), "ticks": ticks}


def every_signal():
    """Handle every signal that can have a handler; the sender waits until each has arrived.

    It is told when its handler has returned: otherwise the next one would be handled inside it, and so on without end.
    """
    theirs, acknowledge = os.pipe()
    num_handled = 0
    handled = deque()

    def handle(number, _):
        nonlocal num_handled
        num_handled += 1
        handled.append(number)

    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, handle)
    sending = sender(ONE_BY_ONE, stdin=theirs)
    say_ready()
    while goes_on() or sending.poll() is None:  # no blocking call: a signal just before one is not seen until it ends
        sum(range(100))
        while handled:
            os.write(acknowledge, bytes([handled.popleft()]))
    num_sent, num_lost = map(int, sending.communicate()[0].split())
    soon(lambda: num_handled == num_sent + 1)  # and SIGCHLD, for its own end
    return {"rounds": num_sent, "wrong": num_lost + abs(num_handled - num_sent - 1)}


def children():
    """Cause one SIGCHLD after the other, as fast as possible; a lost one leaves its child a zombie."""
    num_started = num_ended = num_lost = 0

    def reap(*_):
        nonlocal num_ended
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                num_ended += 1

    signal.signal(signal.SIGCHLD, reap)
    say_ready()
    while goes_on():
        if os.fork() == 0:
            os._exit(0)
        num_started += 1
        until = time.monotonic() + 5.0
        while num_ended + num_lost < num_started:
            num_lost += time.monotonic() > until
    return {"rounds": num_started, "wrong": num_lost}


def interrupts():
    """Run a handler that raises, as Ctrl-C does: each exception must reach the program. Without the collector, whose
    callbacks lose exceptions (recorder/hooks/garbage.py)."""
    gc.disable()
    num_raised = num_arrived = 0
    may_raise = False

    class Told(Exception):
        pass

    def tell(*_):
        nonlocal num_raised, may_raise
        if may_raise:
            may_raise = False
            num_raised += 1
            raise Told

    signal.signal(signal.SIGUSR1, tell)
    sending = sender(IN_BURSTS, signal.SIGUSR1 + 0)
    say_ready()
    while goes_on():
        try:
            may_raise = True
            while goes_on():
                sum(range(100))
        except Told:
            num_arrived += 1
    may_raise = False
    sending.communicate()
    return {"rounds": num_raised, "wrong": num_raised - num_arrived}


# Waits: what came back, after how long


def sleep():
    return time.sleep(SECONDS)


def lock():
    lock = threading.Lock()
    lock.acquire()
    return lock.acquire(timeout=SECONDS)


def recv():
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(in_a_while("sys.stdout.write('word'*9)"), stdout=theirs):
        return ours.recv(100).decode()


def recv_timeout():
    ours, theirs = socket.socketpair()
    ours.settimeout(SECONDS)
    with ours, theirs:
        try:
            return ours.recv(100).decode()
        except OSError as error:
            return str(error)


def read():
    with subprocess.Popen(in_a_while("sys.stdout.write('word'*9)"), stdout=subprocess.PIPE) as child:
        return os.read(child.stdout.fileno(), 100).decode()


def waitpid():
    with subprocess.Popen(in_a_while("sys.exit(3)")) as child:
        return os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])


def select_():
    return [len(part) for part in select.select([os.pipe()[0]], [], [], SECONDS)]


def poll():
    poller = select.poll()
    poller.register(os.pipe()[0], select.POLLIN)
    return poller.poll(SECONDS * 1e3)


def epoll():
    poller = select.epoll()
    poller.register(os.pipe()[0], select.EPOLLIN)
    return poller.poll(SECONDS)


def epoll_in_c():
    """Wait in C, without Python's retry: the call itself must not return EINTR."""
    poller = select.epoll()
    with subprocess.Popen(in_a_while("sys.stdout.write('word')"), stdout=subprocess.PIPE) as child:
        poller.register(child.stdout.fileno(), select.EPOLLIN)
        events = ctypes.create_string_buffer(12)
        return libc.epoll_wait(poller.fileno(), events, 1, -1)


def nanosleep_in_c():
    class Time(ctypes.Structure):
        _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]

    whole = int(SECONDS)
    return libc.nanosleep(ctypes.byref(Time(whole, int((SECONDS - whole) * 1e9))), None)


# States


def without_gil():
    """Work in C without the GIL on the main thread; another thread waits."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    size = 100_000
    began = time.monotonic()
    hashlib.pbkdf2_hmac("sha256", b"a", b"b", size)
    size = int(size * SECONDS / (time.monotonic() - began))
    say_ready()
    return hashlib.pbkdf2_hmac("sha256", b"a", b"b", size).hex() != ""


def with_gil():
    """Match a regular expression that takes seconds, with the GIL held."""
    length = 18
    while True:
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * length + "b")
        took = time.monotonic() - began
        if took > 0.2:
            break
        length += 1
    while took < SECONDS:
        took *= 2
        length += 1
    say_ready()
    return re.match(r"(a+)+$", "a" * length + "b")


def no_descriptors():
    """Open files until none is left, and close them when STOP exists; go on until it has gone again."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    files = []
    try:
        while True:
            files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        say_ready()
    while not os.path.exists(STOP):
        time.sleep(0.01)
    for file in files:
        os.close(file)
    while os.path.exists(STOP):
        time.sleep(0.01)
    return len(files)


def finalized():
    """Finalize the interpreter; the process goes on."""
    libc.__cxa_atexit(libc.sleep, ctypes.c_void_p(30), None)
    return None


def say_ready():
    print("ready", flush=True)


if __name__ == "__main__":
    name = sys.argv[1]
    before = set(sys.modules), list(sys.meta_path), set(vars())
    interval = sys.getswitchinterval()
    if name not in SAY_READY_THEMSELVES:
        say_ready()
    began = time.monotonic()
    result = {"select": select_}.get(name, globals().get(name))()
    took = time.monotonic() - began
    left = {
        "modules": sorted(module for module in set(sys.modules) - before[0] if "probe" in module),
        "meta_path": len(sys.meta_path) - len(before[1]),
        "main": sorted(set(vars()) - before[2] - {"before", "began", "interval", "result", "took", "left"}),
        "switch_interval": sys.getswitchinterval() - interval,
    }
    print(json.dumps({"result": result, "took": took, "left": left}), flush=True)
