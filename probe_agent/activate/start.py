"""Start of the recorder in this process: from the `.pth` file, from `probe run`, or by `probe_agent.start()`.

Runs on the main thread while the interpreter starts; it makes the target's folder and starts a thread. The recorder
is loaded from its folder under a name of its own (recorder/importing.py), so that the target needs none of our
dependencies and no path of ours.
"""

# No `from __future__ import annotations`: with a path of the job's in front it may find something else.
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from probe_agent.recorder.importing import Importer

__all__ = ["start", "start_if_asked"]

_PACKAGE, _ACTIVATION = "_probe_recorder", "_probe_activation"
#: A forked child that calls another program does so at once; until then it is not worth a recorder.
SETTLE_S = 0.1


def start_if_asked() -> None:
    """Start the recorder if `PROBE` asks for it and this process is selected. Never raises."""
    try:
        chosen = _ours("selection")
        role = chosen.role(os.environ)
        if role == chosen.TARGET:
            _start(chosen.with_children(os.environ), os.environ.get("PROBE_LISTEN", ""))
        elif role == chosen.FORK_SERVER:
            os.register_at_fork(after_in_child=_start_in_child)
    except Exception as error:
        _say(error)


def start() -> None:
    """Start the recorder in this process and return at once. Does nothing if one runs already."""
    _start(children=False, listen=os.environ.get("PROBE_LISTEN", ""))


def _start(children: bool, listen: str) -> None:
    if _PACKAGE in sys.modules:
        return
    if not sys.platform.startswith("linux"):
        raise OSError("Probe's recorder needs Linux: it keeps its rings in /dev/shm; this is " + sys.platform)
    if listen:
        server = _ours("listen")
        server.check(listen)
    _ours("seccomp").check()
    try:
        importer = _load()
        folders = importer.load(_PACKAGE + ".ring.folder")
        folder = folders.make_own()  # here and now: a child that starts next must see whose child it is
        try:
            if listen:
                server.start_server(listen, folder)
        except Exception:
            folders.remove(folder)
            raise
        _begin(importer, folder, children)
    except Exception:
        _forget()
        raise


def _start_in_child() -> None:
    """Start in a forked child, unless it soon ends or becomes another program. Never raises."""
    try:
        _forget()
        _begin(_load(), "", children=True)
    except Exception as error:
        _say(error)


def _load() -> "Importer":
    """Return the importer of the recorder, whose package marks that it is there."""
    importer = _importer(_PACKAGE, "recorder")
    sys.modules[_PACKAGE] = importer.load(_PACKAGE)
    return importer


def _ours(name: str) -> "Any":
    """Load a module beside this one; nothing that it imports stays visible to the target."""
    importer = _importer(_ACTIVATION, "activate")
    try:
        return importer.load(f"{_ACTIVATION}.{name}")
    finally:
        importer.close()


def _importer(package: str, below: str) -> "Importer":
    """Return an importer of our modules that ignores the target's path."""
    # What importlib.machinery offers, without loading importlib in every Python.
    from _frozen_importlib_external import SourceFileLoader  # here, so that the target does not find it in our module

    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(root, below)
    if not os.path.isdir(folder):
        raise OSError(f"the recorder must be a folder, not part of an archive: there is no {folder}")
    module: Any = type(sys)(package + ".importing")
    loader = SourceFileLoader(module.__name__, os.path.join(root, "recorder", "importing.py"))
    code: Any = loader.get_code(module.__name__)
    exec(code, vars(module))
    importer: Importer = module.Importer(package, module.Folder(package, folder))
    return importer


def _forget() -> None:
    for name in [name for name in list(sys.modules) if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


def _begin(importer: "Importer", folder: str, children: bool) -> None:
    """Start our thread, which waits a moment and makes a folder itself if it gets none."""
    importer.load(_PACKAGE + ".guest.at_exit").watch()  # on the main thread: the process cannot end unnoticed before
    forks = [importer.load(_PACKAGE + ".guest.fork_safety")] if children else []
    for fork_safety in forks:
        fork_safety.watch(_start_in_child)
    # In lists, which the thread empties: what it was given stays until it has ended.
    importer.load("_thread").start_new_thread(_run, ([importer], folder, forks))


def _run(importers: "list[Importer]", folder: str, forks: "list[Any]") -> None:
    _record(importers, folder, forks)()


def _record(importers: "list[Importer]", folder: str, forks: "list[Any]") -> "Callable[[], None]":
    """Record until detached, or until the process ends, and return the thread's last function."""
    importer, runtime = importers.pop(), None
    at_exit = importer.load(_PACKAGE + ".guest.at_exit")
    try:
        if folder or _settles(importer, at_exit):
            if folder and os.environ.get("LOCAL_RANK", "0") == "0":  # once a host, and not for forked children
                for problem in importer.load(_PACKAGE + ".config").Settings().problems:
                    _write_line(f"{problem.message}; {problem.hint}")
            importer.load_all()
            runtime = importer.load(_PACKAGE + ".boot").start_planned(folder)
    except Exception as error:
        if not at_exit.is_ending():
            _say(error)
    while forks:
        forks.pop().forget(_start_in_child)
    last: Callable[[], None] = importer.load(_PACKAGE + ".guest.departure").prepare(importer, runtime)
    return last


def _settles(importer: "Importer", at_exit: "Any") -> bool:
    """Return whether the process still runs after a moment."""
    ended = importer.load("_thread").allocate_lock()
    ended.acquire()
    at_exit.tell(ended.release)
    return not ended.acquire(timeout=SETTLE_S)


def _say(error: Exception) -> None:
    """Write one line to stderr: nothing else is available this early."""
    what = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    _write_line(f"the recorder is not started: {what}")


def _write_line(text: str) -> None:
    line = f"probe: {' '.join(text.split())}"[:1000] + "\n"
    try:
        # Past Python's buffer: what stayed in there for want of room would make the job exit with 120.
        os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
    except (AttributeError, OSError, ValueError):
        return  # stderr is None, full or closed: there is nobody left to tell
