"""Starts the recorder in this process: from the `.pth` file, from `probe run`, or by `probe_agent.start()`.

Runs on the main thread while the interpreter starts; it makes the target's folder and starts a thread. The recorder
is loaded from its folder under a name of its own, so that the target needs none of our dependencies and no path of
ours.
"""

from __future__ import annotations

import _thread
import os
import sys
from time import monotonic, sleep
from types import ModuleType

__all__ = ["start", "start_if_asked"]

_PACKAGE = "_probe_recorder"
#: A forked child that calls another program does so at once; until then it is not worth a recorder.
SETTLE_S = 0.1
#: A sitecustomize that takes longer than this is a program of its own.
SITE_S = 10.0


def start_if_asked() -> None:
    """Start the recorder if `PROBE` asks for it and this process is one that is meant. Never raises."""
    try:
        from . import chosen

        role = chosen.role(os.environ)
        if role == chosen.TARGET:
            _start(chosen.with_children(os.environ), os.environ.get("PROBE_LISTEN", ""))
        elif role == chosen.FORK_SERVER:
            os.register_at_fork(after_in_child=_start_in_child)
    except Exception as error:
        _say(error)


def start() -> None:
    """Start the recorder in this process and return at once. Does nothing where one runs already."""
    _start(children=False, listen=os.environ.get("PROBE_LISTEN", ""))


def _start(children: bool, listen: str) -> None:
    if _PACKAGE in sys.modules:
        return
    if not sys.platform.startswith("linux"):
        raise OSError("Probe's recorder needs Linux: it keeps its rings in /dev/shm; this is " + sys.platform)
    if listen:
        from .listen import check, start_server

        check(listen)
    try:
        ending, folders = _load()
        folder = folders.make_own()  # here and now: a child that starts next shall see whose child it is
        try:
            if listen:
                start_server(listen, folder)
        except Exception:
            folders.remove(folder)
            raise
        _begin(ending, folder, children)
    except Exception:
        _forget()
        raise


def _start_in_child() -> None:
    """After a fork, in the child: start anew, unless it soon ends or becomes another program. Never raises."""
    try:
        _forget()
        ending, _ = _load()
        _begin(ending, "", children=True)
    except Exception as error:
        _say(error)


def _load() -> tuple[ModuleType, ModuleType]:
    """Load the recorder; its modules that are needed on the main thread."""
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "recorder")
    if not os.path.isdir(folder):
        raise OSError(f"the recorder must be a folder, not part of an archive: there is no {folder}")
    spec = spec_from_file_location(_PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    assert spec is not None
    assert spec.loader is not None
    package = module_from_spec(spec)
    sys.modules[_PACKAGE] = package
    spec.loader.exec_module(package)
    return import_module(_PACKAGE + ".ending"), import_module(_PACKAGE + ".ring.folder")


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == _PACKAGE]:
        del sys.modules[name]


def _begin(ending: ModuleType, folder: str, children: bool) -> None:
    """Start our thread; without a folder, it waits a moment and makes one itself."""
    from importlib import import_module

    ending.watch()  # on the main thread, so that the process cannot end unnoticed before
    forks = import_module(_PACKAGE + ".forks") if children else None
    if forks is not None:
        forks.watch(_start_in_child)
    _thread.start_new_thread(_run, (ending, folder, forks))


def _run(ending: ModuleType, folder: str, forks: ModuleType | None) -> None:
    from importlib import import_module

    try:
        _wait_for_path(ending)
        if folder or _settles(ending):
            if folder and os.environ.get("LOCAL_RANK", "0") == "0":  # once a host, and not for forked children
                for problem in import_module(_PACKAGE + ".config").Settings().problems:
                    _write_line(f"{problem.message}; {problem.hint}")
            import_module(_PACKAGE + ".boot").start_planned(folder)
    except Exception as error:
        if not ending.is_ending():
            _say(error)
    finally:
        if forks is not None:
            forks.forget(_start_in_child)
        _forget()
        ending.over()


def _wait_for_path(ending: ModuleType) -> None:
    """Wait until `site` has put sys.path together: it takes entries out, and an import that looks along the path
    meanwhile overlooks one and finds no module."""
    spec = getattr(sys.modules.get("site"), "__spec__", None)
    until = monotonic() + SITE_S
    while getattr(spec, "_initializing", False) and not ending.is_ending() and monotonic() < until:
        sleep(0.001)


def _settles(ending: ModuleType) -> bool:
    """Whether the process is still there after a moment."""
    ended = _thread.allocate_lock()
    ended.acquire()
    ending.tell(ended.release)
    return not ended.acquire(timeout=SETTLE_S)


def _say(error: Exception) -> None:
    """One line on stderr, which is all there is this early."""
    what = f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    _write_line(f"the recorder is not started: {what}")


def _write_line(text: str) -> None:
    line = f"probe: {' '.join(text.split())}"[:1000] + "\n"
    try:
        # Past Python's buffer: what stayed in there for want of room would make the job exit with 120.
        os.write(sys.stderr.fileno(), line.encode("utf-8", "backslashreplace"))
    except (AttributeError, OSError, ValueError):
        return  # stderr is None, full or closed: there is nobody left to tell
