"""A slot: shared memory into which a rank copies its state, and which its node keeps when the rank is gone.

    byte 0                  0: it may be written. The node says so when nobody resumes from what is in it any more
    byte 1                  1: it is safe. The node says so when each rank's state of that step is on all its nodes
    from byte 64            the contents of the state's entries, each at a multiple of 64 bytes
    behind them             the record of them: a `Part` as JSON, whose contents are named by their numbers
    the last 16 bytes       where the record begins, and how long it is

A rank that is killed while it writes leaves nothing: its node is given the slot when all is in it.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from typing import Any

from ..api.errors import CheckpointError
from ..node.blobs import FREE, SAFE
from ..node.replicas import FOLD_BYTES, HEAD_BYTES, digest, folded
from .records import ByteRange, Damaged, Entry, Part, Piece
from .snapshot import CopyMemory, Snapshot, unpickled

ALIGN_BYTES = 64
SLACK_BYTES = 1 << 16  # for a state that grows a little
_TAKEN = b"\x01\x00"  # and not safe yet
_TRAILER = struct.Struct("<QQ")


class Slot(CopyMemory):
    def __init__(self) -> None:
        super().__init__()
        self.fd = -1
        self._mapping: mmap.mmap | None = None
        self._at = HEAD_BYTES  # where the next content goes
        self._places: dict[int, int] = {}  # of the entries that lie in it

    @property
    def free(self) -> bool:
        return self._mapping is None or self._mapping[:1] == FREE

    @property
    def safe(self) -> bool:
        """Return whether what it was taken with is on as many nodes as was asked for, or is wanted no more."""
        return self.free or (self._mapping is not None and self._mapping[1:2] == SAFE)

    @property
    def capacity_bytes(self) -> int:
        return 0 if self._mapping is None else len(self._mapping)

    def begin(self) -> None:
        """Begin to write another state."""
        self._at, self._places = HEAD_BYTES, {}

    def block(self, index: int, size_bytes: int) -> memoryview | None:
        """Return where an entry lies; None if there is no room for it, and `finish` has to make some."""
        at = self._at
        self._at = at + size_bytes + -size_bytes % ALIGN_BYTES
        if self._mapping is None or self._at + SLACK_BYTES // 2 > len(self._mapping):
            return None
        self._places[index] = at
        return memoryview(self._mapping)[at : at + size_bytes]

    def finish(self, snapshot: Snapshot, rank: int, step: int) -> tuple[int, int]:
        """Write what the snapshot has elsewhere, and the record; return the part's bytes and digest.

        It may take long, so it does not belong in the training's thread. An OSError: there is no memory for it.
        """
        where: dict[str, ByteRange] = {}
        entries: list[Entry] = []
        at = HEAD_BYTES
        for index, entry in enumerate(snapshot.entries):
            start = self._places.get(index, -1)
            entries.append(entry._replace(digest=str(index)))
            where[str(index)] = ByteRange("", start, entry.size)
            if index in self._places:
                at = max(at, start + entry.size)
        elsewhere = [index for index in range(len(entries)) if index not in self._places]
        for index in elsewhere:
            at += -at % ALIGN_BYTES
            where[str(index)] = ByteRange("", at, entries[index].size)
            at += entries[index].size
        record = Part(rank, 0, 0, step, entries, where, {}).dump()
        size_bytes = at + len(record) + _TRAILER.size
        if size_bytes > self.capacity_bytes:
            self.reserve(size_bytes + size_bytes // 64 + SLACK_BYTES, keep=bool(self._places))
        for index in elsewhere:
            _write(self.fd, snapshot.raw(index), where[str(index)].start)
        _write(self.fd, record + _TRAILER.pack(at, len(record)), at)
        self.kept.clear()
        assert self._mapping is not None, "it was reserved"
        return size_bytes, quick_digest(self._mapping, size_bytes)

    def reserve(self, size_bytes: int, *, keep: bool = False) -> None:
        """Make room for a state, with what is in the slot if it is to be kept. An OSError: there is none."""
        fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size_bytes)  # a page that is lacking later would end the process by SIGBUS
            if keep and self._mapping is not None:
                _write(fd, memoryview(self._mapping), 0)
            mapping = mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self.fd, self._mapping = fd, mapping

    def take(self) -> int:
        """Mark the slot as taken, and return a descriptor of it, for the node."""
        os.pwrite(self.fd, _TAKEN, 0)
        return os.dup(self.fd)

    def release(self) -> None:
        if self.fd >= 0:
            os.pwrite(self.fd, FREE, 0)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self._mapping = -1, None  # arrays may still lie in the memory, which goes with the last of them


def quick_digest(content: mmap.mmap, size_bytes: int) -> int:
    """Return `node.replicas.digest`; NumPy takes 60 ms for 1 GB, without the interpreter's lock."""
    numpy: Any = sys.modules.get("numpy")
    blocks = (size_bytes - HEAD_BYTES) // FOLD_BYTES
    if numpy is None or not blocks:
        return digest(content, size_bytes)
    words = numpy.frombuffer(content, numpy.uint64, blocks * FOLD_BYTES // 8, HEAD_BYTES).reshape(blocks, -1)
    fold = numpy.bitwise_xor.reduce(words, axis=0).tobytes()
    with memoryview(content) as view:
        return folded(fold, view[HEAD_BYTES + blocks * FOLD_BYTES : size_bytes])


def _write(fd: int, content: Piece, at: int) -> None:
    """Write without the interpreter's lock."""
    with memoryview(content).cast("B") as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


def restored(content: mmap.mmap, size_bytes: int, into: object = None) -> Any:
    """The state that lies in a slot's memory, which is this process's own: arrays and tensors lie in it and are
    writable.

    Raises `CheckpointError` where it is not of that form, `SerializationError` where it cannot be unpickled here.
    """
    view = memoryview(content)
    try:
        at, length = _TRAILER.unpack(view[size_bytes - _TRAILER.size : size_bytes])
        own = Part.load(bytes(view[at : at + length]))

        def read(entry: Entry) -> Piece:
            place = own.where[entry.digest]
            return view[place.start : place.start + place.length]

        if into is None and all(entry.kind != "tensor" for entry in own.entries):
            return unpickled(own.entries, read, None)
        from .tensors import TensorLoader, lying_in

        loader = TensorLoader(into, {}, own, read, lying_in)
        state = unpickled(own.entries, read, loader.load)
        loader.finish()
    except (Damaged, struct.error, KeyError) as error:
        raise CheckpointError(
            f"A rank's state in memory cannot be read here: {error}. A state that is sharded over ranks is loaded into "
            "tensors that are sharded in the same way."
        ) from error
    return state
