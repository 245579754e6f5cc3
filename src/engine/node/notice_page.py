"""The notice page: shared memory in which a node's tasks read which machines the cloud will take back, and when.

The page is a memory file that all processes of the node have mapped, so no message is needed. The executor server
writes the page's text. Each task has a cell, in which it counts its stop checks: the points of its training loop at
which it can stop. Reading an unchanged page takes 0.3 us.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from typing import Any, cast

import msgpack

from ...lazy_named_tuple import NamedTuple

_HEADER = struct.Struct("<QII")  # number of writes; length of the text in bytes; CRC-32 of the text
_TEXT_BYTES = 16 * 1024 - _HEADER.size
_CELL = struct.Struct("<qqqq")  # attempt, job, generation of the job, number of stop checks
CELLS = 1536  # enough for all slots and the ranks of a broadcast; a task uses the cell of its worker
_CELLS_AT = _HEADER.size + _TEXT_BYTES
_SIZE_BYTES = _CELLS_AT + CELLS * _CELL.size
KEPT = 64  # maximum number of broadcasts with an entry (a `World`) on the page; the oldest entries are dropped


class PostedNotice(NamedTuple):
    """A preemption notice as tasks read it from the page."""

    number: int  # unique on a node; stays the same when the notice's time changes
    source: str
    seconds: float  # time from the notice's arrival to the machine's end
    at: float  # when the machine ends, in time.monotonic() of this machine
    node: int | None = None  # the node that ends; None: this node


class World(NamedTuple):
    """The client's notice and stop decision for a generation (one run of a broadcast) with ranks on this node."""

    generation: int
    notice: PostedNotice | None  # the notice about the machine that ends first, of all machines of the broadcast
    stop_at: int | None  # number of the stop check at which all ranks stop; None: not decided


class PageText(NamedTuple):
    own: PostedNotice | None = None
    # job (a broadcast) -> its notice and stop decision; to change an entry, make a new dictionary
    worlds: dict[int, World] = {}  # noqa: RUF012 (replaced as a whole, never changed)


EMPTY = PageText()


class NoticePage:
    """The notice page, which processes share by its descriptor or by a fork. Only one process writes the text."""

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
        """Replace the page's text. If it has entries of more than `KEPT` broadcasts, drop the oldest ones."""
        kept = dict(list(text.worlds.items())[-KEPT:])
        data = cast("bytes", msgpack.packb([text.own, kept]))
        assert len(data) <= _TEXT_BYTES, "notices are short: see `Pending.record`"
        self._written += 1
        self._page[_HEADER.size : _HEADER.size + len(data)] = data
        _HEADER.pack_into(self._page, 0, self._written, len(data), zlib.crc32(data))

    def read(self) -> PageText:
        """Return the page's text. While another process writes a new text, return the previous text."""
        head = self._page[: _HEADER.size]
        if head == self._head:
            return self._text
        _, size, checksum = _HEADER.unpack(head)
        data = self._page[_HEADER.size : _HEADER.size + min(size, _TEXT_BYTES)]
        if zlib.crc32(data) == checksum:
            self._text, self._head = _parsed(data), head
        return self._text

    def count(self, cell: int, attempt: int, job: int, generation: int) -> int:
        """Count one more stop check of this attempt, in its cell; return the number of its checks."""
        if cell >= CELLS:
            raise RuntimeError(f"more than {CELLS} tasks at a time on this node: they cannot agree on when to stop")
        place = _CELLS_AT + cell * _CELL.size
        before, _, _, count = _CELL.unpack_from(self._page, place)
        count = count + 1 if before == attempt else 1
        _CELL.pack_into(self._page, place, attempt, job, generation, count)
        return count

    def counted(self, job: int, generation: int) -> int:
        """Return the highest number of stop checks of this node's ranks of a generation; 0 if no rank has checked."""
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
