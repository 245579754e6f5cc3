"""Search for the user's own files that are sent to nodes.

Also finds the names of the modules that tasks can import from these files.
"""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from ...lazy_dataclass import dataclass
from ...providers.shared.paths import expanded
from ..api.errors import SpecError
from ..api.image import Image
from ..api.secrets import revealed
from .cache import Copy, FileCopies, client_cache

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_NEVER = {".git", ".hg", ".svn", "__pycache__", ".DS_Store"}
_COMPILED = (".pyc", ".pyo")
# how often symlinks may lead to the same folder; symlinks between n folders create up to n! different paths
VISITS_MOST = 100


class File(NamedTuple):
    copy: Copy
    executable: bool


@dataclass(frozen=True, slots=True)
class Includes:
    """The files that are sent to nodes because of ``includes=``.

    ``files``: path in the node's folder for included files -> file. ``paths``: folders inside that folder, which are
    put at the beginning of `sys.path`.
    """

    files: Mapping[str, File] = field(default_factory=dict)
    paths: tuple[str, ...] = (".",)
    modules: frozenset[str] = frozenset()  # top-level modules that tasks can import from these files


class Root(NamedTuple):
    """A local file or folder of ``includes=``, and its path in the node's folder for included files."""

    source: Path
    place: PurePosixPath


def roots(image: Image) -> list[Root]:
    by_place: dict[PurePosixPath, Root] = {}
    for include in image.includes:
        for root in _roots_of(include):
            other = by_place.setdefault(root.place, root)
            if other.source != root.source:
                raise SpecError(
                    f"Image(includes=...): {other.source} and {root.source} would both be {root.place} on the nodes: "
                    "rename one, or include a folder that contains them."
                )
    return list(by_place.values())


def scan(image: Image) -> Includes:
    """Copy and hash every included file as it is now."""
    if not image.includes:
        return Includes()
    files: dict[str, File] = {}
    copies = FileCopies(client_cache())
    paths = {".": None}
    folders = [Path(entry or ".").resolve() for entry in sys.path]
    for root in roots(image):
        if not root.source.is_dir():
            files[root.place.as_posix()] = _read(root.source, copies)
            continue
        for source in walk(root.source, image.excludes):
            files[(root.place / source.relative_to(root.source)).as_posix()] = _read(source, copies)
        # folders of `sys.path` inside an included folder are also added to `sys.path` on the nodes
        for folder in folders:
            if folder.is_relative_to(root.source):
                paths[(root.place / folder.relative_to(root.source)).as_posix()] = None
    return Includes(files, tuple(paths), frozenset().union(*(_modules(files, place) for place in paths)))


def on_this_computer(image: Image) -> Image:
    """Return the image for nodes on this computer. Their tasks import the included files from where these files are."""
    if image.has_packages or image.apt or image.run or image.python != "auto":
        from .local_check import refuse_what_is_lacking

        refuse_what_is_lacking(image)
    folders = [str(root.source.parents[len(root.place.parts) - 1]) for root in roots(image)]
    added = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    if not added:
        return image
    user_path = revealed(image.env.get("PYTHONPATH", ""))
    path = os.pathsep.join(filter(None, [user_path, *added]))
    return replace(image, env={**image.env, "PYTHONPATH": path})


# --- included files and folders -------------------------------------------------------------------------------------


def _roots_of(include: str | os.PathLike[str] | ModuleType) -> Iterator[Root]:
    if isinstance(include, ModuleType):
        yield from _module(include.__name__)
        return
    path = expanded(include)
    if os.path.exists(path):  # noqa: PTH110 - Path.exists raises an OSError for a name that is too long
        whole = path.resolve()
        yield Root(whole, PurePosixPath(whole.name or "root"))
        return
    name = os.fspath(include)
    if not all(part.isidentifier() for part in name.split(".")):
        raise SpecError(f"Image(includes=...): there is no {path.absolute()}: correct the path, or leave it out.")
    yield from _module(name)


def _module(name: str) -> Iterator[Root]:
    """Yield the file of a module, or the folders of a package, with the path on nodes that makes it importable."""
    parts = name.split(".")
    locations, origin = _located(name, parts[0], None)
    for depth in range(2, len(parts) + 1):
        if origin is not None:
            whole = ".".join(parts[: depth - 1])
            raise SpecError(f"Image(includes=...): {name} is a part of the package {whole}: include all of {whole!r}.")
        locations, origin = _located(name, ".".join(parts[:depth]), locations)
    if locations:
        for location in locations:
            yield Root(Path(location).resolve(), PurePosixPath(*parts))
    elif origin is None or not Path(origin).is_file():
        raise SpecError(f"Image(includes=...): {name} is not made of files: it comes with Python. Leave it out.")
    elif not origin.endswith(".py"):
        raise SpecError(f"Image(includes=...): {name} is compiled ({origin}): name its package in Image(pip=...).")
    else:
        yield Root(Path(origin).resolve(), PurePosixPath(*parts[:-1], Path(origin).name))


def _located(wanted: str, name: str, search: Sequence[str] | None) -> tuple[list[str] | None, str | None]:
    """Return (folders, file) of a module.

    If the module is not imported, return what an import would find.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None and search is not None:
        # the last part of the name is enough here; the full name would require that the parent package is imported
        spec = PathFinder.find_spec(name.rpartition(".")[2], search)
    elif name not in sys.modules:
        spec = find_spec(name)
    if spec is None:
        raise SpecError(
            f"Image(includes=...): {wanted!r} is neither a file here ({Path(wanted).absolute()}) "
            "nor a module that can be imported: check its name, or install it here."
        )
    locations = spec.submodule_search_locations
    return None if locations is None else list(locations), spec.origin if spec.has_location else None


# --- files of a folder ----------------------------------------------------------------------------------------------


def _read(source: Path, copies: FileCopies) -> File:
    try:
        with source.open("rb", buffering=0) as file:
            executable = bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR)
            return File(copies.keep(file.fileno()), executable)
    except OSError as error:
        raise SpecError(
            f"Image(includes=...): {source} cannot be copied: {error.strerror}. Exclude it, or make it readable."
        ) from error


def _is_loop(folder: tuple[int, int], above: frozenset[tuple[int, int]]) -> bool:
    return folder in above


def _refuse_unreadable(error: OSError) -> NoReturn:
    raise SpecError(
        f"Image(includes=...): {error.filename} cannot be read: {error.strerror}. Exclude it, or make it readable."
    ) from error


def _modules(files: Mapping[str, File], place: str) -> set[str]:
    prefix = "" if place == "." else f"{place}/"
    below = (path[len(prefix) :] for path in files if path.startswith(prefix) and path.endswith(".py"))
    names = (path.split("/")[0].removesuffix(".py") for path in below)
    return {name for name in names if name.isidentifier()}


def walk(top: Path, excludes: Sequence[str]) -> Iterator[Path]:
    """Yield every file below ``top`` that is not ignored, always in the same order. Symlinks are followed.

    INCLUDES-1: a folder is skipped only if it is also one of its own parent folders, because a symlink creates a loop.

    Raises:
        SpecError: a folder cannot be read, or symlinks lead to the same folder more than `VISITS_MOST` times.
    """
    ignored = _Ignored(top, excludes)
    lineages: dict[Path, frozenset[tuple[int, int]]] = {}
    visits = Counter[tuple[int, int]]()
    for at, folders, names in os.walk(top, onerror=_refuse_unreadable, followlinks=True):
        here = Path(at)
        status = here.stat()
        identity, above = (status.st_dev, status.st_ino), lineages.get(here.parent, frozenset())
        if _is_loop(identity, above):
            folders.clear()
            continue
        lineages[here] = above | {identity}
        visits[identity] += 1
        if visits[identity] > VISITS_MOST:
            raise SpecError(
                f"Image(includes=...): symlinks below {top} lead to the folder {here.resolve()} more than "
                f"{VISITS_MOST} times: exclude some of them, or include that folder by itself."
            )
        folders[:] = sorted(
            name
            for name in folders
            if name not in _NEVER
            and not (here / name / "pyvenv.cfg").exists()
            and not ignored.has(here / name, is_folder=True)
        )
        for name in sorted(names):
            path = here / name
            if name in _NEVER or name.endswith(_COMPILED) or ignored.has(path, is_folder=False):
                continue
            if path.is_file():  # not a socket or a broken symlink
                yield path


class _Ignored:
    """The patterns for ignored files below ``top``, from the .gitignore files of the repository and from the user."""

    def __init__(self, top: Path, excludes: Sequence[str]) -> None:
        self._top = top
        self._own = _compiled(excludes) if excludes else None
        self._specs: dict[Path, GitIgnoreSpec | None] = {}
        self._above = self._folders_above()

    def has(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether ``path`` is ignored.

        If several patterns match, the user's patterns decide, then those in the nearest .gitignore file.
        """
        inside = [folder for folder in path.parents if folder.is_relative_to(self._top)]
        of_git = ((self._spec(folder), folder) for folder in (*inside, *self._above))
        for spec, folder in ((self._own, self._top), *of_git):
            if spec is not None and (word := _word(spec, folder, path, is_folder)) is not None:
                return word
        return False

    def _folders_above(self) -> list[Path]:
        """Return the folders above ``top`` up to the root of its git repository.

        Empty if a .gitignore file there ignores ``top`` itself: the user has named ``top``, so these files do not
        count.
        """
        folders: list[Path] = []
        for folder in () if (self._top / ".git").exists() else self._top.parents:
            folders.append(folder)
            if (folder / ".git").exists():
                break
        else:
            return []  # `top` is not in a git repository
        for folder in folders:
            spec, inner = self._spec(folder), self._top
            while spec is not None and inner != folder:
                if _word(spec, folder, inner, is_folder=True):
                    return []
                inner = inner.parent
        return folders

    def _spec(self, folder: Path) -> GitIgnoreSpec | None:
        if folder not in self._specs:
            file = folder / ".gitignore"
            lines = file.read_text(errors="replace").splitlines() if file.is_file() else []
            self._specs[folder] = _compiled(lines) if lines else None
        return self._specs[folder]


def _word(spec: GitIgnoreSpec, base: Path, path: Path, is_folder: bool) -> bool | None:
    """Return True if a pattern ignores the path, False if a pattern with ``!`` includes it; None: no match."""
    return spec.check_file(path.relative_to(base).as_posix() + ("/" if is_folder else "")).include


def _compiled(lines: Sequence[str]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise SpecError(f"Image(excludes=...) and .gitignore files hold patterns as git knows them: {error}") from error
