"""Sending of the client's script and modules to a pool's workers, together with functions."""

from __future__ import annotations

import linecache
import os
import pickle
import site
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from ..wire import copies, pickler
from ..wire.importable import importable
from ..wire.script_modules import MAIN, Script

# maximum total size of the pickled names of a script; compression then reduces it to about a fifth
REST_BYTES = 384 * 1024
EACH_BYTES = 32 * 1024  # maximum size of one pickled name
_CACHED = type(cache(len))
_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
SOURCES_BYTES = 1 << 20  # maximum total size of source files that nodes do not have
_TOKEN = f"{os.getpid()}-{os.urandom(4).hex()}"  # identifies this process; workers keep one set of modules per token


class Scripts:
    """The description of this process's script for the workers of one pool.

    It follows changes of the program's modules.
    """

    def __init__(self) -> None:
        self._first_path = self._path = list(sys.path)
        self._added: tuple[str, ...] = ()
        # the program's own modules: name -> (module, spec of the module)
        self._modules: dict[str, tuple[ModuleType, object]] = {}
        self._seen = 0
        self._reloads: dict[str, int] = {}
        self._rest = _Rest()
        # modules of the program that an import cannot find, because other code loaded them
        self.loaded_by_hand: tuple[str, ...] = ()

    def news(self) -> list[str] | None:
        """Return the modules that were imported again since the last call; None: nothing has changed.

        An empty list: ``sys.path`` has new folders, or definitions in a notebook have changed.
        """
        if (
            len(sys.modules) == self._seen
            and sys.path == self._path
            and not self._modules
            and not self._rest.may_change
        ):
            return None
        if has_path_changed := sys.path != self._path:
            self._path = list(sys.path)
            self._added = tuple(each for each in self._path if each not in self._first_path)
        if len(sys.modules) != self._seen:
            self._seen = len(sys.modules)
            for name, module in list(sys.modules.items()):
                if name not in self._modules and _is_own(name, module):
                    self._modules[name] = module, module.__spec__
                    if _is_code(name, module) and not importable(name):
                        self.loaded_by_hand = (*self.loaded_by_hand, name)
        reloaded = [name for name, (module, spec) in self._modules.items() if _is_another(name, module, spec)]
        for name in reloaded:
            self._modules[name] = sys.modules[name], sys.modules[name].__spec__
            self._reloads[name] = self._reloads.get(name, 0) + 1
        return reloaded if reloaded or has_path_changed or self._rest.has_changed() else None

    def of_function(self, watch: copies.Watch, *, shares_files: bool) -> Script:
        """Return the description of this process's script that is sent with a function.

        Args:
            watch: The dependencies of the pickled function. They decide which parts of the script are sent.
            shares_files: Whether nodes see the files of this computer.
        """
        main = vars(sys.modules[MAIN])
        self._rest.update(main)
        texts = _texts((*watch.files, *self._rest.files), shares_files=shares_files)
        return Script(
            _TOKEN,
            {name: main[name] for name in ("__file__", "__package__") if main.get(name) is not None},
            self._added if shares_files else (),
            tuple(sorted(self._reloads.items())) if shares_files else (),
            self._rest.with_constants(main) if watch.needs_rest else self._rest.data,
            zlib.compress(pickle.dumps(texts, 5), 1) if texts else b"",
            watch.needs_rest,
        )


class _Rest:
    """The script's functions and classes that are not pickled with the function, but one by one.

    A task may need a class that its function does not mention, for example when it unpickles an object.
    """

    def __init__(self) -> None:
        self.data = b""
        # in a notebook or an interactive session, which have no file, definitions may change
        self.may_change = "__file__" not in vars(sys.modules[MAIN])
        self._of: dict[str, tuple[object, copies.Watch, bytes | None]] = {}

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(file for _, watch, _ in self._of.values() for file in watch.files))

    def has_changed(self) -> bool:
        """Return whether a definition of a notebook has been replaced since it was pickled.

        Takes 0.1 us per definition.
        """
        if not self.may_change:
            return False
        get = vars(sys.modules[MAIN]).get
        return any(get(name) is not value for name, (value, _, _) in self._of.items())

    def update(self, main: dict[str, Any]) -> None:
        """Pickle the names that are new or have changed."""
        defined = {name: value for name, value in list(main.items()) if _is_defined_here(name, value)}
        before, self._of = self._of, {}
        others = {id(value): name for name, value in defined.items()}
        for name, value in defined.items():
            known = before.get(name)
            if known is None or known[0] is not value or known[1].may_change or not known[1].is_unchanged():
                watch = copies.Watch()
                known = (
                    value,
                    watch,
                    _pickled(value, watch, {key: each for key, each in others.items() if each != name}),
                )
            self._of[name] = known
        now = {name: data for name, (_, _, data) in self._of.items()}
        if now != {name: data for name, (_, _, data) in before.items()}:
            pickles = dict(_chosen(now))
            self.data = zlib.compress(pickle.dumps(pickles, 5), 1) if pickles else b""

    def with_constants(self, main: dict[str, Any]) -> bytes:
        """Return the compressed pickles of the script's functions, classes and constants.

        Code that looks up names by text, such as with `eval`, needs them.
        """
        pickles = {name: data for name, (_, _, data) in self._of.items()}
        for name, value in list(main.items()):
            if type(value) in _PLAIN and not name.startswith("_"):
                pickles[name] = _pickled(value, copies.Watch(), {})
        return zlib.compress(pickle.dumps(dict(_chosen(pickles)), 5), 1)


def _chosen(pickles: dict[str, bytes | None]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, pickle), the smallest pickle first, up to a total size of `REST_BYTES`."""
    left = REST_BYTES
    usable = ((name, data) for name, data in pickles.items() if data is not None)
    for name, data in sorted(usable, key=lambda each: len(each[1])):
        left -= len(data)
        if left < 0:
            return
        yield name, data


def _is_defined_here(name: str, value: object) -> bool:
    if not isinstance(value, FunctionType | type | _CACHED):
        return False
    return getattr(value, "__module__", None) == MAIN and getattr(value, "__qualname__", None) == name


class _TooLarge(Exception):
    pass


class _Limited:
    """A file object that accepts at most `EACH_BYTES` bytes, and raises `_TooLarge` for more."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._left = EACH_BYTES

    def write(self, data: Any) -> int:
        self._take(len(data))
        self.parts.append(bytes(data))
        return len(data)

    def buffer(self, buffer: pickle.PickleBuffer) -> bool:
        self._take(memoryview(buffer).nbytes)
        return True

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise _TooLarge

    def seek(self, _: int) -> None:
        pass

    def truncate(self) -> None:
        self.parts, self._left = [], EACH_BYTES


def _pickled(value: object, watch: copies.Watch, others: dict[int, str]) -> bytes | None:
    file = _Limited()
    try:
        pickler.write(
            file, lambda: pickler.Pickler(file, file.buffer, code=True, watch=watch, others=others).dump(value)
        )
    except Exception:  # noqa: BLE001 - a __reduce__ may raise anything; also `_TooLarge`
        return None
    return b"".join(file.parts)


def _texts(files: Iterable[str], *, shares_files: bool) -> dict[str, str]:
    texts, left = dict[str, str](), SOURCES_BYTES
    for file in dict.fromkeys(files):
        if shares_files and Path(file).exists():
            continue
        text = "".join(linecache.getlines(file))
        if text and len(text) <= left:
            left -= len(text)
            texts[file] = text
    return texts


def _is_code(name: str, module: ModuleType) -> bool:
    """Return whether a module contains code of the program. Compiled extensions also create modules without files."""
    if name == "__mp_main__" or module.__name__ != name:
        return False
    kinds = FunctionType if module.__dict__.get("__file__") is None else FunctionType | type
    return any(
        isinstance(value, kinds) and getattr(value, "__module__", None) == name for value in list(vars(module).values())
    ) and not any(parent.startswith(_installed()) for parent in _files_of_parents(name))


def _files_of_parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        file = getattr(sys.modules.get(name), "__file__", None)
        yield file if isinstance(file, str) else ""


def _is_another(name: str, module: ModuleType, spec: object) -> bool:
    now = sys.modules.get(name)
    return now is not None and (now is not module or now.__spec__ is not spec)


def _is_own(name: str, module: object) -> bool:
    """Return whether a module is the user's own: neither installed, nor a part of Python or of Outrider."""
    if name == MAIN or not isinstance(module, ModuleType):
        return False
    file = vars(module).get("__file__")
    if not isinstance(file, str):
        # a module that code created; two kinds, which Cython's extensions create, contain no code of the user
        return file is None and module.__spec__ is None and not name.startswith(("cython_runtime", "_cython_"))
    if file.startswith(_installed()):
        return False
    return name.partition(".")[0] not in {"outrider", *sys.stdlib_module_names}


@cache
def _installed() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = {
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(paths[each] for each in ("purelib", "platlib", "stdlib")),
    }
    return tuple(f"{folder}{os.sep}" for folder in folders)
