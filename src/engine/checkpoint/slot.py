"""A slot: shared memory into which a rank copies its state, and which its node keeps after the rank's end.

    byte 0                  0: the slot may be written. The node sets this when no rank will resume from its content
    byte 1                  1: the state is safe. The node sets this when all requested nodes have all ranks' step
    from byte 64            the contents of the state's entries, each at a multiple of 64 bytes
    after the contents      their record: a `Part` as JSON, in which numbers, not digests, name the contents
    the last 16 bytes       the record's offset and length

A rank that is killed while it writes leaves nothing behind: its node receives the slot only when it is complete.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from contextlib import nullcontext
from typing import Any

from ..api.errors import CheckpointError
from ..node.blobs import FREE, SAFE
from ..node.stored_blobs import BLOCK_BYTES, HEAD_BYTES, WORD_BYTES, part_digest, part_digest_of
from .records import ByteRange, Damaged, Entry, Part, Piece
from .snapshot import CopyMemory, Snapshot, unpickled

ALIGN_BYTES = 64
SLACK_BYTES = 1 << 16  # spare room for a state that grows a little
PIECE_BYTES = 1 << 19  # bytes copied at a time: few enough that the digest reads them from the processor's cache
_TAKEN = b"\x01\x00"  # bytes 0 and 1 of a slot that the node uses and whose state is not safe yet
_TRAILER = struct.Struct("<QQ")


class Slot(CopyMemory):
    def __init__(self, ranks: int = 0) -> None:
        """Create a slot. ``ranks``: number of the training's ranks on this computer, which all save at once."""
        super().__init__()
        self._ranks = ranks
        self.fd = -1
        self._mapping: mmap.mmap | None = None
        self._at = HEAD_BYTES  # offset for the next content
        # entry -> offset in the slot that the entry would have if the slot were large enough
        self._reserved: dict[int, int] = {}
        self._places: dict[int, int] = {}  # entry -> offset in the slot at which the entry is
        self._blocks: dict[int, tuple[int, int, memoryview]] = {}  # entry -> (offset, size, memory)
        self._sums: Sums | None = None  # digest of the contents copied so far
        self._recorded: tuple[object, bytes] = None, b""  # (entries, their encoded record) of the latest state

    @property
    def free(self) -> bool:
        return self._mapping is None or self._mapping[:1] == FREE

    @property
    def safe(self) -> bool:
        """Return whether all requested nodes have the slot's state, or no rank needs it any more."""
        return self.free or (self._mapping is not None and self._mapping[1:2] == SAFE)

    @property
    def capacity_bytes(self) -> int:
        return 0 if self._mapping is None else len(self._mapping)

    def begin(self) -> None:
        """Begin to write another state to this slot."""
        self._at, self._reserved, self._places = HEAD_BYTES, {}, {}
        self._sums = None
        if self._mapping is not None and "numpy" in sys.modules and cores_are_busy(self._ranks):
            self._sums = Sums(self._mapping)

    def block(self, index: int, size_bytes: int) -> memoryview | None:
        """Return the slot's memory for an entry; None: the slot is too small, and `finish` will enlarge it."""
        at = self._reserved.setdefault(index, self._at)
        self._at = at + size_bytes + -size_bytes % ALIGN_BYTES
        if self._mapping is None or self._at + SLACK_BYTES // 2 > len(self._mapping):
            return None
        self._places[index] = at
        known = self._blocks.get(index)
        if known is None or known[:2] != (at, size_bytes):
            self._blocks[index] = known = at, size_bytes, memoryview(self._mapping)[at : at + size_bytes]
        return known[2]

    def fill(self, copies: list[tuple[memoryview, Any, Any]]) -> None:
        """Copy tensors and buffers into the slot: (memory in the slot, tensor in that memory or None, source).

        If no core is free, add each copied piece to the digest at once, as reading the piece again from main memory
        takes twice as long. Otherwise the thread that hands the state to the node computes the digest, and training
        does not wait for it.
        """
        torch: Any = sys.modules.get("torch")
        in_pieces = self._sums is not None and torch is not None and torch.get_num_threads() == 1
        with nullcontext() if torch is None else torch.no_grad():
            for (block, placed, source), at in zip(copies, self._places.values(), strict=True):
                if placed is None:
                    self._copy_bytes(block, source, at)
                elif not in_pieces:  # copy the whole tensor at once: several threads or a GPU may do it
                    placed.copy_(source)
                elif len(block) > PIECE_BYTES and source.is_cpu and source.is_contiguous():
                    self._copy_pieces(placed, source, at)
                else:
                    placed.copy_(source)
                    self._copied(at + len(block))

    def _copy_bytes(self, block: memoryview, source: memoryview, at: int) -> None:
        for start in range(0, len(block), PIECE_BYTES):
            block[start : start + PIECE_BYTES] = source[start : start + PIECE_BYTES]
            self._copied(at + min(start + PIECE_BYTES, len(block)))

    def _copy_pieces(self, placed: Any, source: Any, at: int) -> None:
        count = PIECE_BYTES // placed.element_size()
        for to, piece in zip(placed.view(-1).split(count), source.view(-1).split(count), strict=True):
            to.copy_(piece)
            at += to.nbytes
            self._copied(at)

    def _copied(self, end: int) -> None:
        """Extend the digest of the slot to offset ``end``, unless the digest lacks much content before ``end``.

        In that case, the thread that hands the state to the node computes the digest.
        """
        if self._sums is not None and BLOCK_BYTES <= end - self._sums.end <= 4 * PIECE_BYTES:
            self._sums.take(end)

    def finish(self, snapshot: Snapshot, rank: int) -> tuple[int, int]:
        """Write the state's record, and the contents that are not in this slot yet.

        It may take long, so do not call it in the training's thread. Raise an OSError if there is not enough memory.

        Returns:
            (size, digest) of the complete content of the slot.
        """
        at = max((start + snapshot.entries[index].size for index, start in self._places.items()), default=HEAD_BYTES)
        starts = dict(self._places)
        elsewhere = [index for index in range(len(snapshot.entries)) if index not in starts]
        for index in elsewhere:
            starts[index] = at = at + -at % ALIGN_BYTES
            at += snapshot.entries[index].size
        record = self._record(rank, snapshot.entries, starts)
        size_bytes = at + len(record) + _TRAILER.size
        if size_bytes > self.capacity_bytes:
            self.reserve(size_bytes + size_bytes // 64 + SLACK_BYTES, keep=bool(self._places))
        for index in elsewhere:
            _write(self.fd, snapshot.raw(index), starts[index])
        _write(self.fd, record + _TRAILER.pack(at, len(record)), at)
        self.kept.clear()
        assert self._mapping is not None, "it was reserved"
        return size_bytes, quick_digest(self._mapping, size_bytes) if self._sums is None else self._sums.digest(
            size_bytes
        )

    def _record(self, rank: int, entries: list[Entry], starts: dict[int, int]) -> bytes:
        """Return the encoded record of the entries.

        Usually this is the record of the previous state, which is kept because encoding takes a while.
        """
        of = rank, entries, starts
        if self._recorded[0] != of:
            named = [entry._replace(digest=str(index)) for index, entry in enumerate(entries)]
            where = {str(index): ByteRange("", start, entries[index].size) for index, start in starts.items()}
            self._recorded = of, Part(rank, 0, 0, 0, named, where, {}).dump()
        return self._recorded[1]

    def reserve(self, size_bytes: int, *, keep: bool = False) -> None:
        """Get memory for a state. Raise an OSError if there is not enough.

        ``keep``: True: preserve the slot's contents.
        """
        fd = os.memfd_create("checkpoint", os.MFD_CLOEXEC)
        try:
            # reserve the pages now: a page that is missing later would end the process by SIGBUS
            os.posix_fallocate(fd, 0, size_bytes)
            if keep and self._mapping is not None:
                _write(fd, memoryview(self._mapping), 0)
            mapping = mmap.mmap(fd, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self.fd, self._mapping = fd, mapping

    def snapshot(self, size_bytes: int) -> KeptSnapshot | None:
        """Return the state of ``size_bytes`` bytes in this slot, completed by `finish`; None: the slot was closed."""
        return None if self._mapping is None else KeptSnapshot(self._mapping, size_bytes)

    def take(self) -> int:
        """Mark the slot as in use by the node, and return a file descriptor of the slot for the node."""
        os.pwrite(self.fd, _TAKEN, 0)
        return os.dup(self.fd)

    def release(self) -> None:
        if self.fd >= 0:
            os.pwrite(self.fd, FREE, 0)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self._mapping, self._sums = -1, None, None
        self._blocks.clear()
        self.known.clear()  # this frees the memory, unless arrays still use it: then the last array frees it


class Sums:
    """The digest of a slot's content, computed with NumPy while ranks copy: sums of all blocks before the offset
    ``end``.
    """

    def __init__(self, content: mmap.mmap) -> None:
        self._numpy: Any = sys.modules["numpy"]
        self._content = content
        count, words = (len(content) - HEAD_BYTES) // BLOCK_BYTES, BLOCK_BYTES // WORD_BYTES
        self._blocks = self._numpy.frombuffer(content, "<u8", count * words, HEAD_BYTES).reshape(count, words)
        self._sums = self._numpy.empty(count, "<u8")
        self.end = HEAD_BYTES

    def take(self, end: int) -> None:
        """Add the complete blocks before offset ``end`` to the digest, without holding the GIL."""
        first, behind = (self.end - HEAD_BYTES) // BLOCK_BYTES, (end - HEAD_BYTES) // BLOCK_BYTES
        if first < behind:
            self._numpy.add.reduce(self._blocks[first:behind], axis=1, out=self._sums[first:behind])
            self.end = HEAD_BYTES + behind * BLOCK_BYTES

    def digest(self, size_bytes: int) -> int:
        """Return `node.stored_blobs.part_digest` of the first ``size_bytes`` bytes of the slot."""
        self.take(size_bytes)
        with memoryview(self._content) as view:
            sums = self._sums[: (self.end - HEAD_BYTES) // BLOCK_BYTES]
            return part_digest_of(sums.tobytes(), view[self.end : size_bytes])


class KeptSnapshot(Snapshot):
    """A state in a slot's memory, in a form that can be written to the storage. It keeps that memory in use."""

    def __init__(self, content: mmap.mmap, size_bytes: int) -> None:
        """Read the state's record. Raise `Damaged` if the memory holds no complete state."""
        view = memoryview(content)
        try:
            own = _recorded(view, size_bytes)
            places = [own.where[entry.digest] for entry in own.entries]
        except (struct.error, KeyError) as error:
            raise Damaged(f"the memory has no record of a state ({error!r})") from None
        self.entries = [entry._replace(digest="") for entry in own.entries]
        self.writers, self.streams, self.copies = {}, set(), []
        self._contents = [
            _content(entry, view[place.start : place.start + place.length])
            for entry, place in zip(own.entries, places, strict=True)
        ]


def _content(entry: Entry, block: memoryview) -> Any:
    if entry.kind != "tensor":
        return block
    from .tensors import lying_in

    return lying_in(block, entry)


def _recorded(view: memoryview, size_bytes: int) -> Part:
    at, length = _TRAILER.unpack(view[size_bytes - _TRAILER.size : size_bytes])
    return Part.load(bytes(view[at : at + length]))


def cores_are_busy(ranks: int = 0) -> bool:
    """Return whether this computer is busy, so that a second thread of each rank would find no free core.

    It is busy if this process may use fewer than two cores for each of the ``ranks`` ranks here. It is also busy if, in
    the last minute, more processes were ready to run than this process has cores.
    """
    cores = len(os.sched_getaffinity(0))
    return 2 * ranks > cores or os.getloadavg()[0] >= cores


def quick_digest(content: mmap.mmap, size_bytes: int) -> int:
    """Return `node.stored_blobs.part_digest` of the content. With NumPy it takes 60 ms for 1 GB."""
    return part_digest(content, size_bytes) if "numpy" not in sys.modules else Sums(content).digest(size_bytes)


def _write(fd: int, content: Piece, at: int) -> None:
    """Write ``content`` at offset ``at``. The GIL is not held meanwhile."""
    with memoryview(content).cast("B") as view:
        done = 0
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


def restored(content: mmap.mmap, size_bytes: int, into: object = None) -> Any:
    """Return the state in a slot's memory. Its arrays and tensors use that memory directly and are writable.

    The memory must belong to this process.

    Raises:
        CheckpointError: The memory holds no complete state, or the state is sharded differently from ``into``.
        SerializationError: The state cannot be unpickled here.
    """
    view = memoryview(content)
    try:
        own = _recorded(view, size_bytes)

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
