"""Leave out files that are not the user's own work: by .gitignore files, as git reads them, and by ``excludes=``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ..api.errors import SpecError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

INSTALL = "pip install 'outrider[image]'"
_NEVER = {".git", ".hg", ".svn", "__pycache__", ".DS_Store"}
_COMPILED = (".pyc", ".pyo")


def walk(top: Path, excludes: Sequence[str]) -> Iterator[Path]:
    """Yield every file below ``top`` that is not ignored, in a fixed order; symlinks are followed.

    Raises:
        SpecError: ``excludes`` or a .gitignore cannot be parsed.
    """
    ignored = _Ignored(top, excludes)
    seen: set[tuple[int, int]] = set()
    for at, folders, names in os.walk(top, followlinks=True):
        here = Path(at)
        status = here.stat()
        if (status.st_dev, status.st_ino) in seen:  # a symlink to a folder above
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
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
            if path.is_file():  # neither a socket nor a dangling symlink
                yield path


class _Ignored:
    """Patterns for files below ``top``: of .gitignore files from the repository's top down, and the user's."""

    def __init__(self, top: Path, excludes: Sequence[str]) -> None:
        self._top, self._excludes = top, excludes
        self._specs: dict[Path, GitIgnoreSpec | None] = {}

    def has(self, path: Path, *, is_folder: bool) -> bool:
        """Return whether ``path`` is ignored. The user's patterns win, then the nearest .gitignore that matches."""
        if self._own is not None and (word := _word(self._own, self._top, path, is_folder)) is not None:
            return word
        inside = [folder for folder in path.parents if folder == self._top or folder.is_relative_to(self._top)]
        for folder in (*inside, *self._above):
            spec = self._spec(folder)
            if spec is not None and (word := _word(spec, folder, path, is_folder)) is not None:
                return word
        return False

    @cached_property
    def _own(self) -> GitIgnoreSpec | None:
        return _compiled(self._excludes) if self._excludes else None

    @cached_property
    def _above(self) -> list[Path]:
        """Folders above ``top`` in its repository; none where they ignore ``top`` itself, as it was asked for."""
        folders: list[Path] = []
        for folder in () if (self._top / ".git").exists() else self._top.parents:
            folders.append(folder)
            if (folder / ".git").exists():
                break
        else:
            return []  # not in a repository
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
    """True: ignored; False: not ignored, by a pattern with ``!``; None: no pattern matches."""
    return spec.check_file(path.relative_to(base).as_posix() + ("/" if is_folder else "")).include


def _compiled(lines: Sequence[str]) -> GitIgnoreSpec:
    try:
        from pathspec import GitIgnoreSpec
    except ImportError as error:
        raise SpecError(f"Image(includes=...) needs pathspec, to read .gitignore files: {INSTALL}") from error
    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise SpecError(f"Image(excludes=...) and .gitignore files hold patterns as git knows them: {error}") from error
