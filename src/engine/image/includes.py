"""Find the user's own files that go to the nodes, and the names under which tasks import them there."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import NamedTuple, NoReturn

from ..api.errors import SpecError
from ..api.image import Image, check_local
from ..api.secrets import revealed
from . import patterns
from .cache import client_cache
from .file_copies import Copy, FileCopies


class File(NamedTuple):
    """A copy of one file, as it was when it was read."""

    copy: Copy
    executable: bool


@dataclass(frozen=True, slots=True)
class Includes:
    """``files`` by their path in the tree on the node; ``paths``: folders of the tree that come first on `sys.path`."""

    files: Mapping[str, File] = field(default_factory=dict)
    paths: tuple[str, ...] = (".",)
    modules: frozenset[str] = frozenset()  # top-level names that tasks can import because of these files

    @property
    def size_bytes(self) -> int:
        return sum(file.copy.size_bytes for file in self.files.values())


class Root(NamedTuple):
    """One entry of ``includes=``: a file or folder here, and its place in the tree."""

    source: Path
    place: PurePosixPath


def roots(image: Image) -> list[Root]:
    """Resolve ``image.includes``.

    Raises:
        SpecError: an entry does not exist, or two have the same place in the tree.
    """
    found: dict[PurePosixPath, Root] = {}
    for include in image.includes:
        for root in _roots_of(include):
            other = found.setdefault(root.place, root)
            if other.source != root.source:
                _refuse(
                    f"Image(includes=...): {other.source} and {root.source} would both be {root.place} on the nodes: "
                    "rename one, or include a folder that contains them."
                )
    return list(found.values())


def scan(image: Image, *, path: Sequence[str] | None = None) -> Includes:
    """Copy and hash every included file as it is now. ``path``: search path to use instead of `sys.path`.

    Raises:
        SpecError: an included file does not exist or cannot be read, or `roots` refuses one.
    """
    if not image.includes:
        return Includes()
    files: dict[str, File] = {}
    copies = FileCopies(client_cache())
    paths = ["."]
    modules: set[str] = set()
    folders = [Path(entry or ".").resolve() for entry in (sys.path if path is None else path)]
    for root in roots(image):
        if root.source.is_dir():
            for source in patterns.walk(root.source, image.excludes):
                files[(root.place / source.relative_to(root.source)).as_posix()] = _read(source, copies)
            for folder in folders:  # a folder of sys.path inside the included one is on the nodes' sys.path too
                if folder.is_relative_to(root.source):
                    inside = (root.place / folder.relative_to(root.source)).as_posix()
                    if inside not in paths:
                        paths.append(inside)
        else:
            files[root.place.as_posix()] = _read(root.source, copies)
    for place in paths:
        modules |= _modules(files, place)
    return Includes(files, tuple(paths), frozenset(modules))


def on_this_computer(image: Image) -> Image:
    """The image for nodes on this computer: they import included files from where they are.

    Raises:
        SpecError: the image asks for something that local nodes do not get, or an include does not exist.
    """
    check_local(image)
    folders = [str(root.source.parents[len(root.place.parts) - 1]) for root in roots(image)]
    added = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    if not added:
        return image
    asked = revealed(image.env.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, [asked, *added]))
    return replace(image, env={**image.env, "PYTHONPATH": path})


# --- what is included ----------------------------------------------------------------------------------------------


def _roots_of(include: str | os.PathLike[str] | ModuleType) -> Iterator[Root]:
    if isinstance(include, ModuleType):
        yield from _module(include.__name__)
        return
    path = Path(include).expanduser()
    if path.exists():
        whole = path.resolve()
        yield Root(whole, PurePosixPath(whole.name or "root"))
        return
    name = os.fspath(include)
    if not all(part.isidentifier() for part in name.split(".")):
        _refuse(f"Image(includes=...): there is no {path.absolute()}.")
    yield from _module(name)


def _module(name: str) -> Iterator[Root]:
    """The file of a module, or the folders of a package, at the place that makes its name importable."""
    parts = name.split(".")
    locations, origin = _found(name, parts[0], None)
    for depth in range(2, len(parts) + 1):
        if origin is not None:
            whole = ".".join(parts[: depth - 1])
            _refuse(f"Image(includes=...): {name} is a part of the package {whole}: include {whole!r}, all of it.")
        locations, origin = _found(name, ".".join(parts[:depth]), locations)
    if locations:
        for location in locations:
            yield Root(Path(location).resolve(), PurePosixPath(*parts))
    elif origin is None or not Path(origin).is_file():
        _refuse(f"Image(includes=...): {name} is not made of files: it comes with Python.")
    elif not origin.endswith(".py"):
        _refuse(f"Image(includes=...): {name} is compiled ({origin}): install it there, by pip=.")
    else:
        yield Root(Path(origin).resolve(), PurePosixPath(*parts[:-1], Path(origin).name))


def _found(asked: str, name: str, search: list[str] | None) -> tuple[list[str] | None, str | None]:
    found = _find(name, search)
    if found is None:
        _refuse(
            f"Image(includes=...): {asked!r} is neither a file here ({Path(asked).absolute()}) "
            "nor a module that can be imported."
        )
    return found


def _find(name: str, search: Sequence[str] | None) -> tuple[list[str] | None, str | None] | None:
    """(folders, file) of a module: of the loaded one, or else as an import would find it. None: there is none."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None and search is not None:
        spec = PathFinder.find_spec(name.rpartition(".")[2], search)  # a namespace's full name would need its parent
    for finder in sys.meta_path if spec is None and search is None else ():
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is not None and (spec := find_spec(name, None)) is not None:
            break
    if spec is None:
        return None
    locations = spec.submodule_search_locations
    return None if locations is None else list(locations), spec.origin if spec.has_location else None


# --- its files ----------------------------------------------------------------------------------------------------


def _read(source: Path, copies: FileCopies) -> File:
    try:
        with source.open("rb", buffering=0) as file:
            executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
            return File(copies.keep(file.fileno()), executable)
    except OSError as error:
        raise SpecError(f"Image(includes=...): {source} cannot be read and copied: {error.strerror}.") from error


def _modules(files: Mapping[str, File], place: str) -> set[str]:
    prefix = "" if place == "." else f"{place}/"
    found: set[str] = set()
    for path in files:
        if path.startswith(prefix) and path.endswith(".py"):
            name = path[len(prefix) :].split("/")[0].removesuffix(".py")
            if name.isidentifier():
                found.add(name)
    return found


def _refuse(message: str) -> NoReturn:
    raise SpecError(message)
