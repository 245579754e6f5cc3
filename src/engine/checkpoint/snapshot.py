"""A rank's state in its stored form: a pickle, with large buffers and tensors beside it.

It is verified when it is loaded.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import cloudpickle

from ..api.errors import CheckpointError, SerializationError
from . import records
from .records import CheckpointId, Damaged, Entry, Manifest, Part, Piece
from .store import Store

IN_BAND_BYTES = 4096  # smaller buffers stay in the pickle


class CopyMemory:
    """The memory for the copies that a snapshot makes.

    The next snapshot reuses it, as new memory pages cost more time than the copy.
    """

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}  # entry -> its memory: a bytearray or a tensor
        # entry -> what `tensors` knows about the tensor that the previous snapshot had as this entry
        self.known: dict[int, Any] = {}

    def block(self, index: int, size_bytes: int) -> memoryview | None:
        """Return memory for an entry, if this object keeps all entries in one block; None: the caller allocates memory
        itself.

        An entry with the same number and size as in the previous snapshot gets the same memory object.
        """
        del index, size_bytes
        return None

    def fill(self, copies: list[tuple[memoryview, Any, Any]]) -> None:
        """Copy each source into its memory. ``copies``: items (memory, tensor in that memory or None, source)."""
        assert not copies, "there are no blocks here"


class Snapshot:
    """A copy of a rank's whole state. Training continues, and changes its arrays in place, while the copy is
    written.
    """

    def __init__(self, state: object, memory: CopyMemory) -> None:
        """Copy ``state``. Raise a `SerializationError` if it cannot be pickled."""
        self.entries: list[Entry] = []
        # entry -> whether this rank writes it to the storage, for entries whose writer is already decided
        self.writers: dict[int, bool] = {}
        self.streams: set[Any] = set()  # CUDA streams of GPUs that may still be copying
        # copies that `memory` still has to make: (memory, tensor in it, source)
        self.copies: list[tuple[memoryview, Any, Any]] = []
        self._contents: list[Any] = []  # contents of the entries: bytes, or a tensor in main memory
        file = io.BytesIO()
        self.add(Entry("", "pickle", 0), b"")  # the pickle is always the first entry; `_contents` gets its bytes below
        try:
            _Pickler(file, state, self, memory).dump(state)
        except Exception as error:
            raise _explained(state, error) from error
        memory.fill(self.copies)
        self.copies = []
        for stream in self.streams:
            stream.synchronize()
        self._contents[0] = file.getvalue()
        self.entries[0] = self.entries[0]._replace(size=file.tell())

    def add(self, entry: Entry, content: Any) -> int:
        self.entries.append(entry)
        self._contents.append(content)
        return len(self.entries) - 1

    def hash(self) -> None:
        """Compute the digests. It takes 1 s per GB, so do not call it in the training's thread."""
        for index, (entry, content) in enumerate(zip(self.entries, self._contents, strict=True)):
            if entry.kind == "tensor":
                from .tensors import tensor_digest

                self.entries[index] = entry._replace(digest=tensor_digest(content))
            else:
                self.entries[index] = entry._replace(digest=records.digest(content))

    def raw(self, index: int) -> Piece:
        """Return the bytes of an entry. For a tensor: only its elements, as they are in main memory."""
        content = self._contents[index]
        if self.entries[index].kind != "tensor":
            return content  # type: ignore[no-any-return]
        from .tensors import raw

        return raw(content)

    def payload(self, index: int) -> Piece:
        content = self._contents[index]
        if self.entries[index].kind != "tensor":
            return content  # type: ignore[no-any-return]
        from .tensors import saved

        return saved(content)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # without types
    """A Cloudpickle pickler that copies code of ``__main__`` into the pickle, as another program may load the
    pickle.
    """

    def __init__(self, file: io.BytesIO, state: object, snapshot: Snapshot, memory: CopyMemory) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._buffer)
        self._snapshot = snapshot
        self._memory = memory
        self._seen: dict[int, tuple[object, tuple[Any, ...]]] = {}
        torch = sys.modules.get("torch")
        # without torch: the empty tuple, as ``isinstance(x, ())`` is False for every object
        self._tensor: Any = () if torch is None else torch.Tensor
        self._paths: dict[int, list[str | int]] = {}
        if torch is not None:
            from .tensors import add_tensor, located

            self._add_tensor = add_tensor
            self._paths = {id(tensor): path for tensor, path in located(state)}

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < IN_BAND_BYTES:
            return True
        index = len(self._snapshot.entries)
        view = self._memory.block(index, content.nbytes)
        if view is None:
            kept = self._memory.kept.get(index)
            if not isinstance(kept, bytearray) or len(kept) != content.nbytes:
                self._memory.kept[index] = kept = bytearray(content.nbytes)
            view = memoryview(kept)
            view[:] = content.cast("B")
        else:
            self._snapshot.copies.append((view, None, content.cast("B")))
        self._snapshot.add(Entry("", "buffer", content.nbytes), view)
        return False

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        if not isinstance(obj, self._tensor):  # fast exit, as most objects are not tensors
            return None
        number = id(obj)
        seen = self._seen.get(number)
        if seen is None:
            known = self._add_tensor(obj, self._paths.get(number), self._snapshot, self._memory)
            if known is None:
                return None
            # keep the object alive here, so that no other object gets the same id
            self._seen[number] = seen = obj, known
        return seen[1]


def _explained(state: object, error: Exception) -> Exception:
    """Convert ``error`` to an error that names the path of the object that cannot be pickled, if a path is found."""
    from ..serialization.error_notes import pickling_error
    from ..wire import values

    if isinstance(error, SerializationError):
        return error
    try:
        values.dump(state, "state", by_reference=False)
    except values.Unpicklable as unpicklable:
        return pickling_error(unpicklable, "checkpoint", "The state")
    return error


# --- loading ----------------------------------------------------------------------------------------------------------


def restore(store: Store, at: CheckpointId, rank: int, into: object = None) -> Any:
    """Return the state with which rank ``rank`` resumes: the state that rank ``rank`` modulo ``world_size`` saved.

    ``world_size``: the number of ranks that saved the checkpoint.

    Raises:
        Damaged: a part is missing, or does not match its digest.
        CheckpointError: the storage does not answer, or a newer version of Outrider wrote the checkpoint.
        SerializationError: the state cannot be unpickled here.
    """
    manifest = Manifest.load(_content(store, at.manifest))
    if manifest.format != records.FORMAT:
        raise CheckpointError(
            f"{store.url}/{at.folder} has format {manifest.format}, which this version of Outrider does not know: "
            "update Outrider here, or on the nodes.",
            url=store.url,
        )
    parts = [
        Part.load(records.checked(_content(store, f"{at.folder}/{name}"), name, wanted))
        for name, wanted in manifest.files.items()
        if records.is_part(name)
    ]
    where, first = records.places(parts), records.first_parts(parts)
    try:
        own = first[rank % manifest.world_size]
    except (KeyError, ZeroDivisionError):
        raise Damaged("the manifest does not name the files of every rank") from None

    def read(entry: Entry) -> Piece:
        place = where.get(entry.digest)
        if place is None:
            raise Damaged(f"no rank wrote {entry.name or entry.kind}")
        try:
            data = store.read(f"{at.folder}/{place.file}", place.start, place.length)
        except FileNotFoundError:
            raise Damaged(f"{place.file} is gone") from None
        if (
            entry.kind != "tensor" and records.digest(data) != entry.digest
        ):  # the digest of a tensor is checked when that tensor is loaded
            raise Damaged(f"{place.file} is not what was written")
        return data

    if into is None and all(entry.kind != "tensor" for entry in own.entries):
        return unpickled(own.entries, read, None)
    from .tensors import TensorLoader

    loader = TensorLoader(into, first, own, read)
    state = unpickled(own.entries, read, loader.load)
    loader.finish()
    return state


def _content(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except FileNotFoundError:
        raise Damaged(f"{key} is gone") from None


def unpickled(entries: list[Entry], read: Callable[[Entry], Piece], load_tensor: Callable[..., Any] | None) -> Any:
    buffers = (read(entry) for entry in entries if entry.kind == "buffer")
    unpickler = _Unpickler(io.BytesIO(read(entries[0])), buffers, load_tensor)
    try:
        return unpickler.load()
    except (ImportError, AttributeError, pickle.UnpicklingError, TypeError) as error:
        raise SerializationError(
            f"A checkpoint cannot be unpickled here ({type(error).__name__}: {error}): run it with the modules, and "
            "the versions of them, that it was saved with.",
            path="state",
        ) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, buffers: Iterator[Any], load_tensor: Callable[..., Any] | None) -> None:
        super().__init__(file, buffers=buffers)
        # cache the loaded tensors: objects that shared a tensor share it again
        self._load_tensor = None if load_tensor is None else cache(load_tensor)

    def persistent_load(self, pid: Any) -> Any:
        assert self._load_tensor is not None, "the pickle names a tensor, and the rank has none"
        return self._load_tensor(*pid)
