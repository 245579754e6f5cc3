"""Validation of files from nodes. Nodes are not trusted: an invalid message is refused before any part is written."""

from __future__ import annotations

import os
import pickle
import pickletools
from typing import Any, NoReturn, Self, cast

from ...lazy_dataclass import dataclass
from ..api.checks import amount, count, in_parts
from ..api.errors import TransferError
from ..api.printable import plain
from ..runtime.work_files import Part

# Opcodes of plain values in pickle's protocol 5. Other opcodes can call code, or let a few bytes allocate any amount of
# memory.
_PLAIN = frozenset(
    "PROTO FRAME STOP MARK MEMOIZE BINGET LONG_BINGET EMPTY_LIST APPEND APPENDS EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 "  # noqa: SIM905
    "NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 SHORT_BINUNICODE BINUNICODE SHORT_BINBYTES BINBYTES".split()
)
LONGEST_NAME = 255  # bytes of one path component, the limit of Linux
# bytes of a path; the path with the local folder in front may still exceed the kernel's limit of 4096
LONGEST_PATH = 4000


@dataclass(slots=True)
class FetchLimits:
    """The number of files and of bytes that the nodes of one fetch may still send, all together."""

    files: int
    size_bytes: int

    @classmethod
    def of(cls, max_files: object, max_gb: object) -> Self:
        count("max_files", max_files)
        return cls(cast("int", max_files), in_parts(amount("max_gb", max_gb, "GB"), 1e9))


class IncomingFiles:
    """The decider (no I/O) for one node's files. Takes the node's messages in order.

    FETCH-1  no name leads out of the folder for the files, and a name is nothing but a relative path
    FETCH-2  a file has no more bytes than its announcement says
    FETCH-3  no more files, and no more bytes, are accepted than the limits allow
    FETCH-4  messages are plain: whole parts of files, one file after another
    """

    def __init__(self, sender: str, limits: FetchLimits, node: int | None = None) -> None:
        """``sender``: the node's name in error messages.

        ``node``: the node's rank for the errors' attribute; None: it has no rank.
        """
        self._sender, self._limits, self._node = sender, limits, node
        self._name = ""
        self._left_bytes = 0  # missing bytes of the current file
        self.unread: tuple[str, str] | None = None  # the first file that the node could not read, and the reason
        self.unread_count = 0

    def take(self, message: object) -> list[Part]:
        """Check a message, and return the file parts to write.

        Raises:
            TransferError: the message is invalid, or exceeds the limits.
        """
        if not isinstance(message, list):
            self._refuse(f"sent {_kind(message)} where parts of files belong")
        return [part for part in message if self._is_written(part)]

    def _is_written(self, part: object) -> bool:
        match part:
            case bytes():
                self._bytes(len(part))
            case ("file", str(name), int(size_bytes), bool()):
                self._file(name, size_bytes)
            case ("end",) if self._name:
                self._name = ""
            case ("unread", str(name), str(why)) if not self._name:
                self._count(name)
                self.unread = self.unread or (name[:LONGEST_PATH], why[:LONGEST_NAME])
                self.unread_count += 1
                return False
            case _:
                self._refuse(f"sent {_kind(part)} where a part of a file belongs")
        return True

    def _file(self, name: str, size_bytes: int) -> None:
        if self._name:
            self._refuse("began a file within another", self._name)
        if (why := objection(name)) is not None:
            self._refuse(f"named a file {name!r}, which {why}", name)
        self._count(name)
        self._limits.size_bytes -= size_bytes
        if size_bytes < 0 or self._limits.size_bytes < 0:
            story = f"there is more than max_gb= allows; {name!r} of {self._sender} would be the next."
            raise TransferError(f"{story} Fetch less, or raise it.", path=name, node=self._node)
        self._name, self._left_bytes = name, size_bytes

    def _count(self, name: str) -> None:
        self._limits.files -= 1
        if self._limits.files < 0:
            story = f"there are more files than max_files= allows; {name!r} of {self._sender} would be the next."
            raise TransferError(f"{story} Fetch less, or raise it.", path=name, node=self._node)

    def _bytes(self, count: int) -> None:
        if not self._name:
            self._refuse("sent bytes of no file")
        self._left_bytes -= count
        if self._left_bytes < 0:
            self._refuse("sent more of a file than it had announced", self._name)

    def _refuse(self, what: str, name: str = "") -> NoReturn:
        raise TransferError(f"{self._sender} {what}: nothing more is taken from it.", path=name, node=self._node)


def _kind(value: object) -> str:
    """Describe a value by its type alone: the ``repr`` of a few nested lists may take years."""
    return f"a value of type {type(value).__name__}"


def objection(name: str) -> str | None:
    """Return why this name is not allowed for a file in a local folder; None: it is allowed."""
    try:
        encoded = os.fsencode(name)
    except UnicodeEncodeError:
        return "is no name of a file"
    parts = name.split("/")
    if "" in parts or "." in parts or ".." in parts:
        return "is no path below a folder"
    if plain(name) != name or "\n" in name or "\t" in name:
        return "has control characters"
    if len(encoded) > LONGEST_PATH or any(len(os.fsencode(each)) > LONGEST_NAME for each in parts):
        return "is too long"
    return None


def plain_value(data: Any) -> object:
    """Unpickle numbers, strings, bytes, lists and tuples.

    A pickle with any other opcode is refused before it is loaded.

    Raises:
        pickle.UnpicklingError, and any other error that broken pickles cause.
    """
    plain_data = bytes(data)
    for opcode, _, _ in pickletools.genops(plain_data):
        if opcode.name not in _PLAIN:
            raise pickle.UnpicklingError(f"{opcode.name} in a part of a file")
    return pickle.loads(plain_data)
