"""The modules that nodes can import: functions and classes of these modules are sent by name, others as a copy."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, assert_never

from ...lazy_named_tuple import NamedTuple

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

OUTRIDER = "outrider"

_node_modules: ContextVar[ImportableModules | None] = ContextVar("outrider_node_modules", default=None)


@contextmanager
def nodes_with(modules: ImportableModules | None) -> Iterator[None]:
    """During the block, let `nodes_have` return whether a module is in ``modules``, which nodes can import."""
    token = _node_modules.set(modules)
    try:
        yield
    finally:
        _node_modules.reset(token)


def nodes_have(module: str) -> bool:
    modules = _node_modules.get()
    return importable(module) if modules is None else modules.has(module)


def has_name(function: Any) -> bool:
    """Return whether a node that imports the function's module finds the function in it."""
    home = named(sys.modules.get(function.__module__), function.__qualname__)
    return getattr(home, "function", None) is function.function and nodes_have(function.__module__)


def imported(module: str, qualname: str) -> Any:
    value = named(importlib.import_module(module), qualname)
    if value is None:
        raise AttributeError(f"module {module!r} has no {qualname!r}", name=qualname)
    return value


def named(scope: object, qualname: str) -> object:
    value = scope
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


class ImportableModules:
    """The modules that nodes on other machines can import.

    These are the standard library, installed packages (the image should install them, too), and the modules in
    ``included``. All other modules are the user's own, and are sent as copies.
    """

    def __init__(self, included: Iterable[str]) -> None:
        self._included = {*included, OUTRIDER}
        self._own: tuple[str, ...] = ()
        self._seen = 0  # length of `sys.modules` when `own` last examined it

    def has(self, module: str) -> bool:
        if not importable(module):
            return False
        top = module.partition(".")[0]
        return top in self._included or top in sys.stdlib_module_names or _is_installed(module)

    def forget(self, modules: Iterable[str]) -> None:
        """Treat these modules as the user's own from now on.

        They were imported again, so nodes have an old version of them.
        """
        self._included -= {module.partition(".")[0] for module in modules}
        self._seen = 0

    def own(self) -> tuple[str, ...]:
        """Return the names of imported top-level modules and packages that are the user's own and not included."""
        # only the number is compared, which misses a module that replaces another one; that is rare
        if len(sys.modules) != self._seen:
            self._seen = len(sys.modules)
            tops = {name.partition(".")[0] for name, module in list(sys.modules.items()) if module is not None}
            self._own = tuple(sorted(top for top in tops if self._is_own(top)))
        return self._own

    def _is_own(self, top: str) -> bool:
        module = sys.modules.get(top)
        if top in self._included or top in sys.stdlib_module_names or top == "__main__" or module is None:
            return False
        has_files = getattr(module, "__file__", None) or getattr(module, "__path__", None)
        return bool(has_files) and _is_findable(top) and not _is_installed(top)


def importable(name: str) -> bool:
    """Return whether another Python process with the same search path would import ``name`` from the same file.

    False for ``__main__``, for modules that code created, and for modules that a test runner loaded from a file. Also
    False for a module of the user whose import has not ended: its code is using a pool, and would use a pool again on
    each node that imports the module.
    """
    if name not in sys.modules:  # `name` may also be None: it is the module of methods such as "abc".index
        return False
    parts = name.split(".")
    names = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    return not any(map(_is_being_imported, names)) and _is_findable(name)


def being_imported() -> tuple[str, ...]:
    """Return the user's own modules whose import has not ended. They are sent as copies.

    The thread that imports them is waiting for the pool. If the pool's thread imported them, both would wait forever.
    """
    # module name -> lock, for imports that have not ended
    locks = getattr(sys.modules["_frozen_importlib"], "_module_locks", None)
    return tuple(name for name in list(locks) if _is_being_imported(name)) if locks else ()


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and getattr(spec, "_initializing", False) and not _is_in_site(spec)


def _is_findable(name: str) -> bool:
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    if name in sys.builtin_module_names:
        return True
    spec, path = None, None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:depth]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == getattr(module, "__file__", None)


class ModulePlace(NamedTuple):
    """The place where this process found a module."""

    name: str  # name of the module's top-level package
    kind: Literal["python", "own", "editable", "installed", "nowhere"]
    distribution: str = ""  # name and version of the installed distribution, such as "numpy==2.0"


def place_of(module: str) -> ModulePlace:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return ModulePlace(top, "python")
    loaded = sys.modules.get(top)
    spec = getattr(loaded, "__spec__", None) or _find(top, None)
    if spec is None:
        return ModulePlace(top, "nowhere")
    if not _is_in_site(spec):
        name = _editable(spec)
        return ModulePlace(top, "editable", name) if name else ModulePlace(top, "own")
    from importlib.metadata import packages_distributions, version

    distributions = packages_distributions().get(top)
    return ModulePlace(top, "installed", f"{distributions[0]}=={version(distributions[0])}" if distributions else "")


def import_advice(module: str) -> str:
    """Return a sentence that tells the user how to make ``module`` importable on nodes. Empty for a part of Python."""
    top, kind, distribution = place_of(module)
    match kind:
        case "python":
            return ""
        case "nowhere":
            return (
                f"{top} is not here either. A package of that name is installed on nodes by Image(pip=[...]), for "
                "those of Local() by `pip install` here; a module of your own is sent by Image(includes=[...])."
            )
        case "editable":
            how = f"is installed here in editable mode, from the distribution {distribution}"
            return f"{top} {how}: send it along by Image(includes=[{top!r}])."
        case "own":
            return f"{top} is your own code: send it along by Image(includes=[{top!r}])."
        case "installed":
            pinned = f"'{distribution}'" if distribution else "..."
            return f"{top} is installed here: have it installed there by Image(pip=[{pinned}])."
        case _:
            assert_never(kind)


def _find(name: str, path: Any) -> ModuleSpec | None:
    """Find the spec of a module with the finders that an import uses, even if the module is already imported."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find_spec(name, path) if find_spec is not None else None
        if spec is not None:
            return spec
    return None


def _is_installed(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return spec is not None and _is_in_site(spec)


def _is_in_site(spec: ModuleSpec) -> bool:
    """Return whether a module's spec is in a folder for installed packages.

    For a namespace package, which may have several folders, the first folder decides.
    """
    place = spec.origin if spec.has_location else next(iter(spec.submodule_search_locations or ()), None)
    return place is not None and any(Path(place).is_relative_to(folder) for folder in (*_folders(), *_layers()))


@cache
def _folders() -> tuple[Path, ...]:
    import site
    import sysconfig

    paths = sysconfig.get_paths()
    folders = {*site.getsitepackages(), site.getusersitepackages(), paths["purelib"], paths["platlib"], paths["stdlib"]}
    return tuple(Path(folder) for folder in folders)


def _layers() -> Iterator[Path]:
    """Yield the folders in `sys.path` whose name says that they contain installed packages.

    They may belong to other environments: ``uv run --with`` adds folders to `sys.path` to combine environments.
    """
    return (Path(entry) for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages"))


def _editable(spec: ModuleSpec) -> str:
    """Return the name of the editable distribution (``pip install -e``) that contains the module; empty: none."""
    import json
    from importlib.metadata import distributions
    from urllib.parse import unquote, urlsplit

    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    for distribution in distributions():
        text = distribution.read_text("direct_url.json")
        if text is None:
            continue
        origin = json.loads(text)
        if origin.get("dir_info", {}).get("editable"):
            folder = unquote(urlsplit(origin["url"]).path)
            if any(Path(place).is_relative_to(folder) for place in places if place):
                return str(distribution.metadata["Name"])
    return ""
