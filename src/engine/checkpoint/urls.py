"""Choose the storage for checkpoints by the form of a path or URL."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..api.errors import SpecError

if TYPE_CHECKING:
    from .store import Store

VARIABLE = "OUTRIDER_CHECKPOINTS"  # in the environment of tasks: the root of ``Pool(checkpoints=...)``

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


def open_store(root: str, run: str) -> Store:
    """The storage of ``run`` below ``root``, which is a path or a URL.

    Raises:
        SpecError: the name or the root is not valid, or a package for it is missing.
    """
    if not _NAME.fullmatch(run):
        raise SpecError(
            f"checkpoint: the name is part of a path: letters, digits, dots, dashes and slashes, not {run!r}."
        )
    root = checked_root("checkpoint: root", root)
    if root.startswith("file://"):
        from .files import FileStore

        return FileStore(f"{root}/{run}")
    from .objects import ObjectStore

    return ObjectStore(f"{root}/{run}")


def checked_root(name: str, root: object) -> str:
    """``root`` as a URL without a slash at its end; a path is made absolute. ``name`` names the option in errors.

    Raises:
        SpecError: ``root`` names no folder or bucket.
    """
    from os import PathLike, fspath
    from pathlib import Path

    if not isinstance(root, str | PathLike) or not fspath(root):
        raise SpecError(f'{name} takes a folder or a URL such as "s3://bucket/folder", not {root!r}.')
    text = str(root)
    parts = _SCHEME.fullmatch(text)
    if parts is None:
        return f"file://{Path(text).expanduser().absolute()}".rstrip("/")
    scheme, rest = parts.groups()
    if scheme == "file" and not rest.startswith("/"):
        raise SpecError(f"{name}: a file URL holds an absolute path, as in file:///data/checkpoints, not {text!r}.")
    if not rest.strip("/"):
        raise SpecError(f"{name}: {text!r} names no place: add a bucket or a folder.")
    return text.rstrip("/")
