"""Transfers of files between a node's work folder and the client. Tasks of Outrider's own do this, without a task slot.

A file is sent as ``("file", name, size_bytes, executable)``, its bytes in pieces, and ``("end",)``. One item of the
stream contains several of these parts, so that small files do not each need a round trip.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO

from ..api.compute import compute

PIECE_BYTES = 32 << 10  # bytes of a file in one part
# largest size in bytes of the parts in one item, which must fit into a frame (a message of the protocol)
ITEM_BYTES = 56 << 10
_PART_BYTES = 64  # largest number of bytes that a part takes in addition to its bytes and texts

Part = tuple[Any, ...] | bytes


@compute
def send_files(pattern: str) -> Iterator[list[Part]]:
    """Yield the files in the working directory that match ``pattern``. An unreadable file is sent as ``("unread", name,
    reason)``.
    """
    yield from grouped(part for name in matching(pattern) for part in parts_of(name, Path(name)))


@compute
def take_files(to: str, items: Iterator[list[Part]]) -> int:
    """Write the received files below ``to``; return their number."""
    writer = FileWriter(Path(to))
    try:
        for parts in items:
            for part in parts:
                writer.write(part)
    finally:
        writer.close()
    return len(writer.written)


def matching(pattern: str) -> Iterator[str]:
    """Yield the names of files that match ``pattern`` or lie below a folder that matches, each name once."""
    seen: set[str] = set()
    # handled here, as Python versions differ in the meaning of a "**" at the end
    base = pattern.removesuffix("/").removesuffix("**").removesuffix("/")
    # whether the pattern has no wildcards; then a link to a folder is followed
    named = not any(sign in base for sign in "*?[")
    for path in [Path()] if base in {"", "."} else sorted(Path().glob(base)):
        names = below(path) if path.is_dir() and (named or not path.is_symlink()) else [str(path)]
        for name in names:
            if name not in seen:
                seen.add(name)
                yield name


def below(folder: Path) -> Iterator[str]:
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            yield os.path.normpath(os.path.join(where, name))  # noqa: PTH118  works also for names that are not valid text


def parts_of(name: str, path: Path) -> Iterator[Part]:
    """Yield the parts of one file; nothing if it is not a regular file, or does not exist any more."""
    try:
        file = _opened(path)
    except FileNotFoundError:
        return
    except OSError as error:
        yield "unread", name, error.strerror or type(error).__name__
        return
    if file is None:
        return
    with file:
        status = os.fstat(file.fileno())
        left = status.st_size  # the file may grow while it is sent: send only as many bytes as announced
        yield "file", name, left, bool(status.st_mode & stat.S_IXUSR)
        while left and (piece := file.read(min(PIECE_BYTES, left))):
            left -= len(piece)
            yield piece
        yield ("end",)


def grouped(parts: Iterable[Part]) -> Iterator[list[Part]]:
    item: list[Part] = []
    size = 0
    for part in parts:
        texts = [part] if isinstance(part, bytes) else [os.fsencode(each) for each in part if isinstance(each, str)]
        needs = _PART_BYTES + sum(map(len, texts))
        if item and size + needs > ITEM_BYTES:
            yield item
            item, size = [], 0
        item.append(part)
        size += needs
    if item:
        yield item


class FileWriter:
    """A writer of files below a folder; each file is written completely or not at all.

    ``written``: the paths of the complete files.

    FILES-1: no file replaces another file of the same writer, as `A.txt` and `a.txt` would on a file system that
        ignores case.
    """

    def __init__(self, folder: Path, *, strip: str = "") -> None:
        """Prepare to write. ``strip``: the common beginning of all file names, which the writer removes."""
        self._folder, self._strip = folder, strip
        self.written: list[Path] = []
        self.path: Path | None = None  # path of the file that is being written
        self._part: Path | None = None
        self._file: BinaryIO | None = None
        self._executable = False
        self._places: set[tuple[int, int]] = set()  # (device, inode) of each file in ``written``

    def write(self, part: Part) -> None:
        match part:
            case bytes() if self._file is not None:
                self._file.write(part)
            case ("file", str(name), _, executable):
                self._begin(name, bool(executable))
            case ("end",) if self._file is not None:
                self._finish()
            case _:
                raise ValueError(f"no part of a file: {part!r}")

    def close(self) -> None:
        """Close the writer, and remove a file that is not complete."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
        if self._part is not None:
            self._part.unlink(missing_ok=True)
            self._part = None

    def _begin(self, name: str, executable: bool) -> None:
        self.close()
        self.path, self._executable = self._folder / name.removeprefix(self._strip), executable
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".outrider-{token_hex(8)}.part")
        self._file = part.open("xb")
        self._part = part

    def _finish(self) -> None:
        assert self._file is not None, "a file has been begun"
        assert self._part is not None, "a file has been begun"
        assert self.path is not None, "a file has been begun"
        if self._executable:
            mode = os.fstat(self._file.fileno()).st_mode
            os.fchmod(self._file.fileno(), mode | (mode & 0o444) >> 2)  # let everyone execute the file who may read it
        self._file.close()
        self._file = None
        self._check_name()
        written = self._part.stat()
        self._part.replace(self.path)
        self._places.add((written.st_dev, written.st_ino))
        self._part = None
        self.written.append(self.path)

    def _check_name(self) -> None:
        assert self.path is not None, "a file has been begun"
        with suppress(FileNotFoundError):
            there = self.path.lstat()
            if (there.st_dev, there.st_ino) in self._places:
                raise FileExistsError(errno.EEXIST, "another file of the node has this name here", str(self.path))


def _opened(path: Path) -> BinaryIO | None:
    """Open a regular file, or a link to one. Return None for any other kind of file, as opening it might block for
    ever.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        return None
    file = open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb", buffering=0)  # noqa: SIM115, PTH123
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    return None
