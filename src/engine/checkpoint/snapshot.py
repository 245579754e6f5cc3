"""A copy of a state: its pickle, and large buffers and tensors beside it. Also the way back, from a copy to a state.

Training goes on and changes arrays in place while the copies are written.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import cloudpickle

from ..api.errors import SerializationError
from .records import Damaged, Entry, digest
from .store import Piece

if TYPE_CHECKING:
    from .tensors import Copies

IN_BAND_BYTES = 4096  # smaller buffers stay in the pickle


class Memory:
    """Memory for snapshots, kept from one to the next: fresh pages cost more time than the copying."""

    def __init__(self) -> None:
        self._buffers: dict[int, bytearray] = {}
        self.copies: Copies | None = None

    def buffer(self, index: int, content: memoryview) -> memoryview:
        kept = self._buffers.get(index)
        if kept is None or len(kept) != content.nbytes:
            self._buffers[index] = kept = bytearray(content.nbytes)
        view = memoryview(kept)
        view[:] = content.cast("B")
        return view


class Snapshot:
    """A copy of everything that a rank has. ``payload(index)``: the bytes to write for an entry."""

    def __init__(self, state: object, memory: Memory) -> None:
        """Copy ``state``; raises `SerializationError` where it cannot be pickled."""
        self.entries: list[Entry] = []
        self.writers: dict[int, bool] = {}  # entries of which this rank knows whether it writes them
        self._payloads: list[Callable[[], Piece]] = []
        self._hashes: list[Callable[[], str]] = []
        file = io.BytesIO()
        pickler = _Pickler(file, state, self, memory)
        try:
            pickler.dump(state)
        except Exception as error:
            raise _explained(state, error) from error
        if memory.copies is not None:
            memory.copies.settle()
        whole = file.getvalue()
        self._payloads[0] = lambda: whole
        self._hashes[0] = lambda: digest(whole)
        self.entries[0] = self.entries[0]._replace(size=len(whole))

    def add(self, entry: Entry, hashed: Callable[[], str], payload: Callable[[], Piece]) -> int:
        self.entries.append(entry)
        self._hashes.append(hashed)
        self._payloads.append(payload)
        return len(self.entries) - 1

    def hash(self) -> None:
        """Fill in the digests. Takes 1 s per GB, so it does not belong in the training's thread."""
        self.entries = [
            entry._replace(digest=hashed()) for entry, hashed in zip(self.entries, self._hashes, strict=True)
        ]

    def payload(self, index: int) -> Piece:
        return self._payloads[index]()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # without types
    """Cloudpickle, which pickles code of ``__main__`` as a copy: another program may load the checkpoint."""

    def __init__(self, file: io.BytesIO, state: object, snapshot: Snapshot, memory: Memory) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._buffer)
        self._snapshot = snapshot
        self._memory = memory
        self._seen: dict[int, tuple[object, tuple[Any, ...]]] = {}
        self._torch = sys.modules.get("torch")
        self._paths = paths(state, self._torch.Tensor) if self._torch is not None else {}
        snapshot.add(Entry("", "pickle", 0), str, bytes)  # the pickle is always the first entry

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < IN_BAND_BYTES:
            return True
        kept = self._memory.buffer(len(self._snapshot.entries), content)
        self._snapshot.add(Entry("", "buffer", content.nbytes), lambda: digest(kept), lambda: kept)
        return False

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        if self._torch is None or not isinstance(obj, self._torch.Tensor):
            return None
        if id(obj) not in self._seen:
            from .tensors import Copies, tensor

            self._memory.copies = self._memory.copies or Copies()
            known = tensor(obj, self._paths.get(id(obj)), self._snapshot, self._memory.copies)
            if known is None:
                return None
            self._seen[id(obj)] = obj, known  # keeps the object alive: its id must not be used again
        return self._seen[id(obj)][1]


def restored(
    entries: list[Entry], read: Callable[[Entry], Piece], tensor: Callable[[int, tuple[Any, ...]], Any]
) -> Any:
    """Build the state of a rank: ``read`` gives the checked content of an entry, ``tensor`` the tensor of an index.

    Raises:
            SerializationError: the bytes are intact but cannot be unpickled here.
    """
    buffers = (read(entry) for entry in entries if entry.kind == "buffer")
    unpickler = _Unpickler(io.BytesIO(read(entries[0])), buffers, tensor)
    try:
        return unpickler.load()
    except Damaged:
        raise
    except (ImportError, AttributeError, pickle.UnpicklingError, TypeError) as error:
        raise SerializationError(
            f"A checkpoint cannot be unpickled here ({type(error).__name__}: {error}): run it with the modules, and "
            "the versions of them, that it was saved with.",
            path="state",
        ) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Iterator[Any], tensor: Callable[[int, tuple[Any, ...]], Any]) -> None:
        super().__init__(file, buffers=buffers)
        self._tensor = tensor
        self._made: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        index, *how = pid
        if index not in self._made:
            self._made[index] = self._tensor(index, tuple(how))
        return self._made[index]


def paths(state: object, kind: type[Any]) -> dict[int, list[str | int]]:
    """Find the path of each object of ``kind`` in nested dicts and sequences, by its id; the first one counts."""
    found: dict[int, list[str | int]] = {}
    names: set[str] = set()

    def visit(value: object, path: list[str | int]) -> None:
        if isinstance(value, kind):
            name = ".".join(map(str, path))
            if path and id(value) not in found and name not in names:
                names.add(name)
                found[id(value)] = path
        elif isinstance(value, Mapping):
            for key, each in value.items():
                visit(each, [*path, str(key)])
        elif isinstance(value, list | tuple):
            for index, each in enumerate(value):
                visit(each, [*path, index])

    visit(state, [])
    return found


def _explained(state: object, error: Exception) -> Exception:
    """The error, with the path of the object that cannot be pickled where that can be found."""
    from ..serialization.error_translation import pickling_error
    from ..wire import values

    if isinstance(error, SerializationError):
        return error
    try:
        values.dump(state, "state", by_reference=False)
    except values.Unpicklable as found:
        return pickling_error(found, "checkpoint", "The state")
    return error
