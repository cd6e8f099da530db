"""A job in which a C call holds the GIL for as long as the test wants: `python held_gil.py regex|pow|thread`.

SIGUSR2 begins the call (`regex` and `pow` begin at once if a second argument says `now`), SIGUSR1 ends it; a line on
standard input ends the job, which then prints how many calls were ended.
"""

import ctypes
import os
import re
import select
import signal
import sys
import threading
import time


class Enough(Exception):
    """Raised by SIGUSR1: both calls check for signals now and then, without releasing the GIL."""


def enough(*_):
    raise Enough


def regex():
    re.match(r"(a+)+$", "a" * 60 + "b")


def huge_pow():
    pow(7, 10**9)


def thread():
    """Hold it on another thread, in a call like that of an extension that never releases it; the main one waits."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to by C, when SIGUSR1 comes
    holder = threading.Thread(target=hold, args=(reader,), name="holder")
    holder.start()
    while holder.is_alive():
        try:
            holder.join()
        except Enough:
            continue
    signal.set_wakeup_fd(-1)
    raise Enough


def hold(reader):
    ctypes.PyDLL(None).read(reader, ctypes.create_string_buffer(1), 1)


CALLS = {"regex": regex, "pow": huge_pow, "thread": thread}
asked = sys.argv[2:] == ["now"]


def begin(*_):
    global asked
    asked = True


num_ended = 0
signal.signal(signal.SIGUSR1, lambda *_: None)
signal.signal(signal.SIGUSR2, begin)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    if asked:
        asked = False
        signal.signal(signal.SIGUSR1, enough)
        try:
            CALLS[sys.argv[1]]()
        except Enough:
            num_ended += 1
        signal.signal(signal.SIGUSR1, lambda *_: None)
    time.sleep(0.01)
print(num_ended, flush=True)
