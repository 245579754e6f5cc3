"""The notice page: the executor server writes which machines will be taken, and when; every task of the node reads it.

The page is a file in memory that all of the node's processes have mapped, so no message is needed. The server writes
its text; each task has a cell of its own, in which it counts its stop checks. Reading a page
that has not changed takes 0.3 us.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import Any, cast

import msgpack

from ...lazy_named_tuple import NamedTuple

_HEADER = struct.Struct("<QII")  # how often it was written; the text's bytes, and their CRC-32
_TEXT_BYTES = 16 * 1024 - _HEADER.size
_CELL = struct.Struct("<qqqq")  # attempt, job, generation, count
CELLS = 1536  # a task uses its worker's cell; beyond the slots there is one for each rank of broadcasts
_CELLS_AT = _HEADER.size + _TEXT_BYTES
_SIZE_BYTES = _CELLS_AT + CELLS * _CELL.size
KEPT = 64  # the number of worlds that are kept, the latest


class PostedNotice(NamedTuple):
    """A preemption notice as tasks read it."""

    number: int  # no two notices of a node have the same; one whose time changes keeps its own
    source: str
    seconds: float  # that were left when it came
    at: float  # time.monotonic(), which is the same in all processes of this machine
    node: int | None = None  # of the world; None: this one


class World(NamedTuple):
    """The client's notice and stop for a generation with ranks here."""

    generation: int
    notice: PostedNotice | None  # the soonest of them
    stop_at: int | None  # the count at which all of its ranks stop


class PageText(NamedTuple):
    own: PostedNotice | None = None
    worlds: dict[int, World] = {}  # by job  # noqa: RUF012 (replaced as a whole, never changed)


EMPTY = PageText()


class NoticePage:
    """The notice page, shared across forks or through its descriptor. Only one process writes it."""

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("notices", os.MFD_CLOEXEC) if fd is None else fd
        if os.fstat(self.fd).st_size < _SIZE_BYTES:
            os.ftruncate(self.fd, _SIZE_BYTES)
        self._page = mmap.mmap(self.fd, _SIZE_BYTES)
        self.closed = False
        self._head = bytes(_HEADER.size)
        self._text = EMPTY
        self._written = 0

    def post(self, text: PageText) -> None:
        """Replace the page's text. Of many worlds the latest are kept."""
        kept = dict(list(text.worlds.items())[-KEPT:])
        data = cast("bytes", msgpack.packb([text.own, kept]))
        assert len(data) <= _TEXT_BYTES, "notices are short: see `Pending.record`"
        self._written += 1
        self._page[_HEADER.size : _HEADER.size + len(data)] = data
        _HEADER.pack_into(self._page, 0, self._written, len(data), zlib.crc32(data))

    def read(self) -> PageText:
        """Return the latest text; while another is being written, the one before."""
        head = self._page[: _HEADER.size]
        if head == self._head:
            return self._text
        _, size, checksum = _HEADER.unpack(head)
        data = self._page[_HEADER.size : _HEADER.size + min(size, _TEXT_BYTES)]
        if zlib.crc32(data) == checksum:
            self._text, self._head = _parsed(data), head
        return self._text

    def count(self, cell: int, attempt: int, job: int, generation: int) -> int:
        """Count one more stop check of this attempt and return their number."""
        if cell >= CELLS:
            raise RuntimeError(f"more than {CELLS} tasks at a time on this node: they cannot agree on when to stop")
        place = _CELLS_AT + cell * _CELL.size
        before, _, _, count = _CELL.unpack_from(self._page, place)
        count = count + 1 if before == attempt else 1
        _CELL.pack_into(self._page, place, attempt, job, generation, count)
        return count

    def counted(self, job: int, generation: int) -> int:
        """Return the highest count of any rank of this generation here; 0: none has checked."""
        cells = _CELL.iter_unpack(self._page[_CELLS_AT:])
        return max((count for _, *of, count in cells if of == [job, generation]), default=0)

    def close(self) -> None:
        self.closed = True
        os.close(self.fd)
        self._page.close()


def _parsed(data: bytes) -> PageText:
    own, worlds = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    return PageText(
        _notice(own),
        {job: World(of, _notice(fields), stop_at) for job, (of, fields, stop_at) in worlds.items()},
    )


def _notice(fields: tuple[Any, ...] | None) -> PostedNotice | None:
    return None if fields is None else PostedNotice(*fields)
