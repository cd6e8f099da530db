"""Importer of the recorder's modules and of the standard library's, independent of the job's path and hooks.

A `socket.py` in the job's folder is not run, and the job's own `import socket` still finds it: a module that the
recorder needs and the job has not imported is private, and never in `sys.modules`. A module of the standard library
that the job has imported is shared, except modules whose functions others replace (gevent replaces threads by
greenlets), and modules that look others up by name.

It works through the `__import__` in the builtins of every module loaded here: `import` in them, in C code that they
call and inside their functions comes here, past the job's hooks. This module runs first, so it imports only modules
that every interpreter has loaded before the job's first line.

Runs on the recorder's thread. Loading holds the GIL for about 2 ms at a time.
"""

# No `from __future__ import annotations` either: it looks for a file of that name.
import _frozen_importlib_external
import _imp
import builtins
import marshal
import sys
from _frozen_importlib import ModuleSpec, _builtin_from_name, _ModuleLockManager  # type: ignore[attr-defined]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, ModuleType
    from typing import Any, Callable, Optional, Union
else:
    ModuleType = type(sys)

__all__ = ["Carried", "Folder", "Importer"]

#: Made anew from the interpreter's own: jobs replace functions in these.
_FRESH = {"_thread", "time", "select"}
#: Written in Python and never shared: they keep replaced functions, look modules up in `sys.modules`, or import inside
#: their functions.
_PRIVATE = {"enum", "linecache", "selectors", "socket", "tokenize", "traceback"}
_BUILTIN = type(len)
#: Python 3.12 and later import `typing` past this importer when a generic class is made: if the job has not imported
#: it, the recorder's copy stays in `sys.modules`.
_TYPING_IS_LOOKED_UP = sys.version_info >= (3, 12)
#: Before 3.10 the interpreter calls the `atexit` module made last at its end and does not keep it alive: freed, it
#: crashes the job. If the job has not imported it, the recorder's copy stays in `sys.modules`.
_LEFT_TO_THE_JOB = {"atexit"} if sys.version_info < (3, 10) else set()
#: `socket` imports it for `send_fds`, which nobody calls here: it gets an empty module. To be made anew, `array` needs
#: `collections.abc` in `sys.modules` for a moment; a job that imports `typing` then would find no `collections.abc`.
_EMPTY = {"array"}
#: In the file names of hooks, whose functions stand between those of the job: `warnings` does not count a frame whose
#: file name contains these two words, so `stacklevel` names the same line of the job as without the recorder.
_UNCOUNTED = "#importlib._bootstrap"
_HELD_S, _PAUSE_S = 0.002, 0.0001
#: Pauses of this length for an iteration over `sys.modules` to end, how many at most, and how many where the job may as
#: well keep a reference of its own: an attach counts `_OWNERS` where it does neither.
_ITERATION_S, _MOST_PAUSES, _UNSURE_PAUSES = 0.001, 200, 100
_OWNERS = 4 if sys.version_info >= (3, 12) else 5


class Carried:
    """The recorder's modules from the payload: `{name: (is it a package, packed source)}`, and their code."""

    def __init__(self, sources: dict[str, tuple[bool, bytes]], magic: bytes, code: dict[str, bytes]) -> None:
        self._sources = sources
        self._code = code if magic == _frozen_importlib_external.MAGIC_NUMBER else {}
        self.names = [name for name in sources if name != __name__]

    def path(self, name: str) -> str:
        return f"<probe>/{name}"

    def is_package(self, name: str) -> bool:
        return self._sources[name][0]

    def source(self, name: str, importer: "Importer") -> str:
        if name not in self._sources:
            return ""  # after detach
        text: bytes = importer.load("zlib").decompress(self._sources[name][1])
        return text.decode()

    def forget(self) -> None:
        """Free sources and code: until Python's next collection little of the recorder is left."""
        self._sources = {}
        self._code = {}

    def code(self, name: str, importer: "Importer") -> "CodeType":
        packed = self._code.pop(name, None)
        return marshal.loads(packed) if packed else compile(self.source(name, importer), self.path(name), "exec")


class Folder:
    """The recorder's modules as files."""

    def __init__(self, package: str, folder: str) -> None:
        self._package = package
        self._folder = folder
        self.names = list(self._names(package, folder))

    def _names(self, package: str, folder: str) -> "Iterator[str]":
        yield package
        for entry in sys.modules["posix"].listdir(folder):
            name, _, ending = entry.partition(".")
            if ending == "py" and not name.startswith("__") and f"{package}.{name}" != __name__:
                yield f"{package}.{name}"
            elif not ending and not name.startswith("__"):
                yield from self._names(f"{package}.{name}", f"{folder}/{name}")

    def path(self, name: str) -> str:
        below = name[len(self._package) :].replace(".", "/")
        return f"{self._folder}{below}/__init__.py" if self.is_package(name) else f"{self._folder}{below}.py"

    def is_package(self, name: str) -> bool:
        return any(other.startswith(name + ".") for other in self.names)

    def source(self, name: str, importer: "Importer") -> str:
        return str(self._loader(name).get_source(name))

    def code(self, name: str, importer: "Importer") -> "CodeType":
        found: CodeType = self._loader(name).get_code(name)
        return found

    def forget(self) -> None:
        """Do nothing: files stay."""

    def _loader(self, name: str) -> "Any":
        return _frozen_importlib_external.SourceFileLoader(name, self.path(name))


class Importer:
    """Importer of the modules of `package` in `ours`, whose `__loader__` it is, and of everything they import."""

    def __init__(self, package: str, ours: "Union[Carried, Folder]") -> None:
        self._package = package
        self._ours = ours
        self.names = ours.names
        self._loaded: dict[str, ModuleType] = {}
        #: Of every module of the recorder, its object, until it is put into `sys.modules`.
        self._hidden: dict[str, ModuleType] = {}
        #: How many refer to `sys.modules` while nobody iterates over it.
        self._num_owners = _owners()
        #: At the start of a process nobody does, so that the number is right.
        self._unsure_pauses = 0 if isinstance(ours, Folder) else _UNSURE_PAUSES
        self._builtins = {**vars(builtins), "__import__": self.import_}
        # C modules import with the builtins of the code that loads them: this module's.
        globals()["__builtins__"] = self._builtins
        self._folders = _library()
        self._lent: list[tuple[str, ModuleType, Optional[ModuleType]]] = []
        self._held_since = 0.0
        self._time: Any = self.load("time")
        self._lock = self.load("_thread").RLock()
        #: The `sys` of private modules of the standard library, without the job's modules.
        self._sys = ModuleType("sys")
        vars(self._sys).update(vars(sys), modules=self._loaded)

    def get_source(self, name: str) -> str:
        """Return the source of a module, for tracebacks."""
        return self._ours.source(name, self)

    def import_(
        self,
        name: str,
        globals: "Optional[dict[str, Any]]" = None,
        locals: object = None,
        fromlist: "Union[tuple[str, ...], list[str]]" = (),
        level: int = 0,
    ) -> "Any":
        """Import as `__import__` does, for the modules loaded here."""
        importing = str((globals or {}).get("__name__", ""))
        if level:
            parent = str((globals or {})["__package__"])
            for _ in range(level - 1):
                parent = parent.rpartition(".")[0]
            name = f"{parent}.{name}" if name else parent
        if name == "sys" and not self._is_ours(importing):
            return self._sys
        found = self.load(name)
        self._take_back()
        if type(fromlist) is list:
            self._lend(name, found)
        if not fromlist:
            return found if level else self.load(name.partition(".")[0])
        if hasattr(found, "__path__"):
            for item in fromlist:
                if item != "*" and not hasattr(found, item):
                    self._load_if_there(f"{name}.{item}")
        return found

    def _lend(self, name: str, module: ModuleType) -> None:
        """Put a module into `sys.modules` until the C code that imports it has taken it from there."""
        there = sys.modules.get(name)
        if there is not module:
            self._lent.append((name, module, there))
            sys.modules[name] = module

    def _take_back(self) -> None:
        """Restore `sys.modules` at once: the job may import the same module and must get its own."""
        while self._lent:
            name, module, there = self._lent.pop()
            if sys.modules.get(name) is module:
                if there is None:
                    del sys.modules[name]
                else:
                    sys.modules[name] = there

    def load(self, name: str) -> "Any":
        """Return a module of the recorder or the standard library. Raises ModuleNotFoundError."""
        found = self._loaded.get(name)
        if found is None:
            if name in _FRESH:
                return self._keep(name, self._fresh(name))
            with self._lock:
                found = self._loaded.get(name)
                if found is None:
                    found = self._load_ours(name) if self._is_ours(name) else self._load_library(name)
        return found

    def load_all(self) -> None:
        """Load all modules of the recorder, then put them into `sys.modules`, where Dynamo looks up the module of a
        function: at once, and while nobody iterates over it, or the job's loop would raise "dictionary changed size
        during iteration"."""
        for name in self.names:
            self.load(name)
        self._between_iterations(sys.modules.update, self._hidden)
        self._hidden.clear()

    def close(self, at_exit: bool = False) -> "dict[str, ModuleType]":
        """Forget all modules and return them by name; code that stays imports as the job does. An exit does not
        wait for the end of an iteration."""
        ours = [name for name in list(sys.modules) if self._is_ours(name)]
        self._between_iterations(list, map(sys.modules.pop, ours), 0 if at_exit else _MOST_PAUSES)
        self._hidden.clear()
        self._builtins["__import__"] = builtins.__import__
        # A C module may keep one that it has imported, but must not keep all of them through it.
        vars(self._sys)["modules"] = sys.modules
        loaded, self._loaded = self._loaded, {}
        self._ours.forget()
        _take_out([module for name, module in loaded.items() if sys.modules.get(name) is not module])
        return loaded

    def yield_gil(self) -> None:
        """Release the GIL before the job has waited long: C code, above all compile(), cannot be interrupted."""
        if self._time.perf_counter() - self._held_since > _HELD_S:
            self._time.sleep(_PAUSE_S)
            self._held_since = self._time.perf_counter()

    def _between_iterations(
        self, change: "Callable[[Any], object]", argument: object, most_pauses: int = _MOST_PAUSES
    ) -> None:
        """Wait for an end of what iterates over `sys.modules` and so refers to it, but not for long, others may keep
        a reference, too; then change it by `change(argument)`, which refers to it as well.

        To count and to change is one call of C: between two, another thread could begin to iterate.
        """
        for pauses in range(most_pauses + 1):
            usual = self._num_owners if pauses >= self._unsure_pauses else self._num_owners - 1
            most = max(_OWNERS, usual) if pauses < most_pauses else sys.maxsize
            counts = filter((most + 1).__ge__, map(sys.getrefcount, (sys.modules,)))
            done = list(zip(counts, map(change, (argument,))))
            if done:
                self._num_owners = min(self._num_owners, done[0][0] - 1)
                return
            self._time.sleep(_ITERATION_S)

    def _is_ours(self, name: str) -> bool:
        return name.partition(".")[0] == self._package

    def _keep(self, name: str, module: "Any") -> "Any":
        self._loaded[name] = module
        return module

    def _load_if_there(self, name: str) -> None:
        try:
            self.load(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise

    def _load_ours(self, name: str) -> ModuleType:
        if name not in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        parent, _, child = name.rpartition(".")
        if parent:
            self.load(parent)
            if name in self._loaded:  # by its parent
                return self._loaded[name]
        spec: Any = ModuleSpec(name, None, origin=self._ours.path(name), is_package=self._ours.is_package(name))
        spec.loader = self
        self._hidden[name] = module = self._module(spec)
        self._num_owners = min(self._num_owners, _owners())
        self._execute(module, lambda: self._code(name))
        if parent:
            setattr(self.load(parent), child, module)
        return module

    def _code(self, name: str) -> "CodeType":
        code = self._ours.code(name, self)
        if name.startswith(f"{self._package}.hooks."):
            _imp._fix_co_filename(code, self._ours.path(name) + _UNCOUNTED)  # type: ignore[attr-defined]
        return code

    def _load_library(self, name: str) -> "Any":
        if name == "os":
            return self._keep(name, self._os())
        if name == "os.path":
            return self._keep(name, self.load("posixpath"))
        there = sys.modules.get(name)
        if there is None and name in _LEFT_TO_THE_JOB:
            self._between_iterations(sys.modules.get, name)  # the import itself cannot be one call of C
            return self._keep(name, _imported(name))
        if name in _EMPTY:
            return self._keep(name, ModuleType(name))
        if _imp.is_builtin(name):
            return self._keep(name, there if type(there) is ModuleType else self._made(_built_in, name))
        if name not in _PRIVATE and self._is_the_librarys(there):
            return self._keep(name, there)
        parent, _, child = name.rpartition(".")
        folders = getattr(self.load(parent), "__path__", []) if parent else self._folders
        if name in self._loaded:  # by its parent
            return self._loaded[name]
        found = self._found(name, folders)
        if isinstance(found.loader, _frozen_importlib_external.ExtensionFileLoader):
            return self._keep(name, self._made(_extension, found))
        module = self._module(found)
        if name == "typing" and _TYPING_IS_LOOKED_UP:
            self._between_iterations(list, map(sys.modules.setdefault, (name,), (module,)))
        self._execute(module, lambda: found.loader.get_code(name))
        module = self._loaded[name]  # a module may replace itself
        if parent:
            if self.load(parent) is sys.modules.get(parent):
                self._loaded[parent] = self._copy(parent)
            setattr(self._loaded[parent], child, module)
        return module

    def _copy(self, name: str) -> ModuleType:
        """Return a private copy of a module of the job."""
        module = ModuleType(name)
        vars(module).update(vars(sys.modules[name]))
        return module

    def _module(self, spec: "Any") -> ModuleType:
        module = ModuleType(spec.name)
        vars(module).update(
            __builtins__=self._builtins,
            __loader__=spec.loader,
            __package__=spec.parent,
            __spec__=spec,
            __file__=spec.origin,
        )
        if spec.submodule_search_locations is not None:
            vars(module)["__path__"] = spec.submodule_search_locations
        return module

    def _execute(self, module: ModuleType, code: "Callable[[], CodeType]") -> None:
        name = module.__name__
        self._loaded[name] = module
        try:
            self.yield_gil()
            body = code()
            self.yield_gil()
            exec(body, vars(module))
        except BaseException:
            del self._loaded[name]
            self._hidden.pop(name, None)
            raise

    def _found(self, name: str, folders: list[str]) -> "Any":
        """Return the spec of a module of the standard library."""
        for folder in folders:
            spec = _finder(folder).find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        raise ModuleNotFoundError(f"No module named {name!r} in the standard library", name=name)

    def _is_the_librarys(self, module: "Optional[ModuleType]") -> bool:
        """Return whether the job's module is the standard library's own and fully imported."""
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if type(module) is not ModuleType or type(origin) is not str or getattr(spec, "_initializing", False):
            return False
        if origin in ("built-in", "frozen"):
            return True
        return "-packages/" not in origin and any(origin.startswith(folder + "/") for folder in self._folders)

    def _fresh(self, name: str) -> ModuleType:
        if _imp.is_builtin(name):
            return self._made(_built_in, name)
        return self._made(_extension, self._found(name, self._folders))

    def _made(self, make: "Callable[[Any], ModuleType]", what: "Any") -> ModuleType:
        """Make a C module, which may have imported others."""
        try:
            return make(what)
        finally:
            self._take_back()

    def _os(self) -> ModuleType:
        """Return a copy of the job's `os`, with its environment and the original system calls."""
        module = self._copy("os")
        for name, value in vars(self.load("posix")).items():
            if type(value) is _BUILTIN:
                setattr(module, name, value)
        return module


def _take_out(ours: "list[Any]") -> None:
    """Remove what private modules have put into the interpreter's own, which would keep them alive for ever: `re` a
    function in the table of `copyreg`, `ast` properties in its classes."""
    spaces = {id(vars(module)) for module in ours}
    table: Any = getattr(sys.modules.get("copyreg"), "dispatch_table", None)
    for kind, function in list(table.items()) if type(table) is dict else []:
        if id(getattr(function, "__globals__", None)) in spaces:
            del table[kind]
    classes = [kind for module in ours if module.__name__ == "ast" for kind in vars(module).values()]
    for kind in classes:
        for name, value in list(vars(kind).items()) if isinstance(kind, type) else []:
            if type(value) is property and id(getattr(value.fget, "__globals__", None)) in spaces:
                delattr(kind, name)


def _library() -> list[str]:
    """Return the standard library's folders: where the interpreter found the first module that it needs."""
    folder = sys.modules["encodings"].__file__.rpartition("/encodings/")[0]  # type: ignore[union-attr]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [folder, f"{folder}/lib-dynload", f"{sys.exec_prefix}/{sys.platlibdir}/{version}/lib-dynload"]


def _finder(folder: str) -> "Any":
    there = _frozen_importlib_external
    return there.FileFinder(
        folder,
        (there.ExtensionFileLoader, _imp.extension_suffixes()),
        (there.SourceFileLoader, there.SOURCE_SUFFIXES),
        (there.SourcelessFileLoader, there.BYTECODE_SUFFIXES),
    )


def _owners() -> int:
    """Return how many refer to `sys.modules`, with what counts them."""
    return next(map(sys.getrefcount, (sys.modules,)))


def _imported(name: str) -> ModuleType:
    """Import a module of the interpreter itself as the job would, but past its hooks."""
    with _ModuleLockManager(name):
        found = sys.modules.get(name)
        return found if type(found) is ModuleType else _builtin_from_name(name)


def _built_in(name: str) -> ModuleType:
    """Make a built-in module anew, as it was before the job changed it."""
    job = sys.modules.get(name)
    changed = dict(vars(job)) if job is not None else {}
    made = _unseen(_imp.create_builtin, ModuleSpec(name, None))
    if made is not job:
        _imp.exec_builtin(made)
        return made
    # Python 3.9 has only one instance of some, and has just restored its original content.
    module = ModuleType(name)
    vars(module).update(vars(made))
    vars(made).update(changed)
    return module


def _unseen(create: "Callable[[Any], ModuleType]", spec: "Any") -> ModuleType:
    """Return a new C module, and leave `sys.modules` as it was: older ones are put there as soon as they are made.

    `zip` calls one after the other in C, so that no other thread runs in between.
    """
    name, modules = (spec.name,), sys.modules
    job = modules.get(spec.name)
    undo = map(modules.pop, name, (None,)) if job is None else map(modules.__setitem__, name, (job,))
    there, made, _ = next(zip(map(modules.get, name), map(create, (spec,)), undo))
    if job is None and there is not None:  # imported by the job just now
        modules[spec.name] = there
    return made


def _extension(spec: "Any") -> ModuleType:
    """Make a C extension of the standard library anew, without leaving it where the job would find it."""
    job = sys.modules.get(spec.name)
    changed = dict(vars(job)) if job is not None else {}
    made = _unseen(_imp.create_dynamic, spec)
    if made is job:
        module = ModuleType(spec.name)
        vars(module).update(vars(made))
        vars(made).update(changed)
        return module
    _imp.exec_dynamic(made)
    return made
