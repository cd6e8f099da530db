"""Payload of an attach: the recorder's modules, and the lines that load and start them in the target.

`place` runs in the attaching process, as the owner of the target's folder; what it writes runs in the target.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from probe_agent.errors import AttachRefused
from probe_agent.recorder.guest.switch_interval import SHORT_S

from .carried import PACKAGE, pack
from .folder import folders, make, names, remove, require_space, unlink, write
from .threads.tracee import Tracee

__all__ = ["ERROR", "PAYLOAD", "TAKEN", "Begun", "folders", "lines", "place", "take_back"]

PAYLOAD = "payload"
#: The name of the payload, which is empty then, once the target has taken it.
TAKEN = "payload.taken"
#: A link that leads to a text instead of a file: it can be made without a free file descriptor.
ERROR = "boot.error"
_RECORDER = Path(__file__).parent.parent / "recorder"

#: Runs in the target, on a new thread. First it renames the payload, so that a second thread finds none. `how` and
#: `usual` are in its namespace already; `run` is called.
_LOADER = """
import os, sys
FOLDER = {folder!r}
os.rename(FOLDER + "/payload", FOLDER + "/payload.taken")
os.truncate(FOLDER + "/payload.taken", 0)
PACKAGE = __name__ = {package!r}


def importer():
    from _frozen_importlib_external import MAGIC_NUMBER
    from marshal import loads
    sources, magic, code, first = loads(globals().pop("carried"))
    module = type(sys)(PACKAGE + ".importing")
    body = code.get(module.__name__)
    exec(loads(body) if body and magic == MAGIC_NUMBER else compile(first, "<probe>", "exec"), module.__dict__)
    return module.Importer(PACKAGE, module.Carried(sources, magic, code))

def run():
    last = load_and_record()
    if last:
        last()
    globals().clear()

def load_and_record():
    # A forked child has its parent's modules, as they were at the fork: a lock in them may be held for ever.
    list(map(sys.modules.pop, [name for name in list(sys.modules) if name.partition(".")[0] == PACKAGE]))
    ours, departure, fork_safety, runtime = None, None, None, None
    try:
        ours = importer()
        departure = ours.load(PACKAGE + ".guest.departure")
        ours.load(PACKAGE + ".guest.at_exit").watch()
        switch_interval = ours.load(PACKAGE + ".guest.switch_interval")
        switch_interval.usual_s = usual
        fork_safety = ours.load(PACKAGE + ".guest.fork_safety")
        fork_safety.watch(switch_interval.rest)
        ours.load_all()
        runtime = ours.load(PACKAGE + ".boot").start(FOLDER, how, {host_pid!r}, {asleep!r})
    except BaseException:
        text = ours.load("traceback").format_exc() if ours else repr(sys.exc_info()[1])
        if not os.path.isdir(FOLDER):  # taken away when what had begun was undone
            os.mkdir(FOLDER, 0o700)
        os.symlink(text[-3000:], FOLDER + "/boot.error")
        sys.setswitchinterval(usual)
    if fork_safety:
        fork_safety.forget(switch_interval.rest)
    return departure and departure.prepare(ours, runtime)
"""

#: What the new thread runs; silent if the payload is gone, because an attach that gave up has taken it back, or empty,
#: because another such thread has emptied it since this one opened it.
_THREAD = """
try:
 with open(F+"/payload","rb")as f:t,b,N["carried"]=f.read().partition(b"\\0")
 if not b:raise FileNotFoundError
 exec(t,N)
 N["run"]()
except BaseException as e:
 s.setswitchinterval(N["usual"])
 try:type(e)is FileNotFoundError or o.symlink(repr(e),F+"/boot.error")
 except:0
"""

#: What the interpreter runs: start a thread, in this process and not in a child that was forked meanwhile. An audit
#: hook of the job may forbid that: it is asked first, and then nothing is done. A signal handler of the job may raise
#: in here; that goes on (it has a frame of its own), what is ours stays. That is why the hook is asked by unpacking: a
#: call would let a handler run before the `try` is over, and what it raises would be taken for the hook's. The new
#: thread may have to fight for the GIL (recorder/guest/switch_interval.py); another attach may have seen to that
#: already, and what the job had is not known any more. gevent and its like put a function of their own in the place of
#: the one that starts threads; then a module made anew has it (of which Python 3.9 has but one, so what was in it is
#: put back).
_LINES = """
F={folder!r}
try:
 import os,_thread,sys as s
 m=map(s.audit,["_thread.start_new_thread"],[exec],[()],[{{}}])
 try:[_]=m
 except:0
 else:
  if os.getpid()=={pid} and os.access(F+"/payload",0):
   f=_thread.start_new_thread
   if type(f)!=type(len):
    import _imp as i;d=vars(_thread);k=dict(d);m=i.create_builtin(_thread.__spec__)
    i.exec_builtin(m);f=m.start_new_thread;d.update(k)
   u=s.getswitchinterval();s.setswitchinterval({short});S=s.getswitchinterval()
   try:f(exec,({thread!r},dict(F=F,s=s,o=os,N=dict(how={how!r},usual=u if u!=S else .005))))
   except:s.setswitchinterval(u);raise
except(RuntimeError,MemoryError)as e:
 if e.__traceback__.tb_next:raise
 try:os.symlink(repr(e),F+"/boot.error")
 except OSError:0
"""


def lines(process: Tracee, folder: Path, how: str) -> bytes:
    """Return the Python code that the target runs: it starts a thread, leaves no name and raises nothing of ours."""
    text = _LINES.format(pid=process.inner_pid, thread=_THREAD.strip(), folder=str(folder), how=how, short=SHORT_S)
    return text.strip().encode() + b"\n\0"


class Begun(Exception):
    """The target has taken an earlier payload meanwhile: a recorder is starting there."""


def place(process: Tracee, recorder: Path | None = None) -> Path:
    """Put the payload into the target's folder, both owned by its user. Return the folder as the target sees it.

    Raises Begun, having touched nothing, when the target was quicker with a payload that lay there.
    """
    refused = []
    carried = pack(process, recorder or _RECORDER)
    # Before the attach itself wakes any of them.
    asleep = {str(tid): round(seconds, 3) for tid, seconds in process.asleep_s().items()}
    fixed = {"package": PACKAGE, "host_pid": process.pid, "asleep": asleep}
    for folder in folders(process):
        text = _LOADER.format(folder=str(folder), **fixed).encode()
        try:
            require_space(process, folder.parent.parent)
            make(process, folder.parent)
            if not take_back(process, folder) and TAKEN in (names(process, folder) or ()):
                raise Begun
            remove(process, folder)
            make(process, folder)
            write(process, folder / PAYLOAD, text + b"\0" + carried)
        except OSError as error:
            refused.append(f"{folder.parent}: {error.strerror or error}")
            with suppress(OSError):
                remove(process, folder)
            continue
        return folder
    raise AttachRefused(
        f"cannot attach to pid {process.pid}: no folder for the recorder's files ({'; '.join(refused)})",
        "give its user a writable /dev/shm or /tmp; in a container: --shm-size=256m",
    )


def take_back(process: Tracee, folder: Path) -> bool:
    """Remove a payload that the target has not taken. Return False if there is none."""
    if not unlink(process, folder / PAYLOAD):
        return False
    remove(process, folder)
    return True
