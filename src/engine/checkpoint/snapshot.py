"""A copy of a state: its pickle, and large buffers and tensors beside it.

Training goes on and changes arrays in place while the copies are written.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any

import cloudpickle

from ..api.errors import SerializationError
from .records import Entry, Piece, digest

IN_BAND_BYTES = 4096  # smaller buffers stay in the pickle


class Snapshot:
    """A copy of everything that a rank has. ``payload(index)``: the bytes to write for an entry.

    ``memory``: what the copies are in, by entry, kept from one snapshot to the next: fresh pages cost more time than
    the copying.
    """

    def __init__(self, state: object, memory: dict[int, Any]) -> None:
        """Copy ``state``; raises `SerializationError` where it cannot be pickled."""
        self.entries: list[Entry] = []
        self.writers: dict[int, bool] = {}  # entries of which this rank knows whether it writes them
        self.streams: set[Any] = set()  # of GPUs that still copy, side by side
        self._contents: list[Any] = []  # of the entries: bytes, or a tensor in main memory
        file = io.BytesIO()
        self.add(Entry("", "pickle", 0), b"")  # always the first entry
        try:
            _Pickler(file, state, self, memory).dump(state)
        except Exception as error:
            raise _explained(state, error) from error
        for stream in self.streams:
            stream.synchronize()
        self._contents[0] = file.getvalue()
        self.entries[0] = self.entries[0]._replace(size=file.tell())

    def add(self, entry: Entry, content: Any) -> int:
        self.entries.append(entry)
        self._contents.append(content)
        return len(self.entries) - 1

    def hash(self) -> None:
        """Fill in the digests. Takes 1 s per GB, so it does not belong in the training's thread."""
        for index, (entry, content) in enumerate(zip(self.entries, self._contents, strict=True)):
            if entry.kind == "tensor":
                from .tensors import tensor_digest

                self.entries[index] = entry._replace(digest=tensor_digest(content))
            else:
                self.entries[index] = entry._replace(digest=digest(content))

    def payload(self, index: int) -> Piece:
        content = self._contents[index]
        if self.entries[index].kind != "tensor":
            return content  # type: ignore[no-any-return]
        from .tensors import saved

        return saved(content)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # without types
    """Cloudpickle, which pickles code of ``__main__`` as a copy: another program may load the checkpoint."""

    def __init__(self, file: io.BytesIO, state: object, snapshot: Snapshot, memory: dict[int, Any]) -> None:
        super().__init__(file, protocol=5, buffer_callback=self._buffer)
        self._snapshot = snapshot
        self._memory = memory
        self._seen: dict[int, tuple[object, tuple[Any, ...]]] = {}
        self._torch = sys.modules.get("torch")
        self._paths: dict[int, list[str | int]] = {}
        if self._torch is not None:
            from .tensors import located

            self._paths = {id(tensor): path for tensor, path in located(state)}

    def _buffer(self, buffer: pickle.PickleBuffer) -> bool:
        content = buffer.raw()
        if content.nbytes < IN_BAND_BYTES:
            return True
        index = len(self._snapshot.entries)
        kept = self._memory.get(index)
        if not isinstance(kept, bytearray) or len(kept) != content.nbytes:
            self._memory[index] = kept = bytearray(content.nbytes)
        view = memoryview(kept)
        view[:] = content.cast("B")
        self._snapshot.add(Entry("", "buffer", content.nbytes), view)
        return False

    def persistent_id(self, obj: object) -> tuple[Any, ...] | None:
        if self._torch is None or not isinstance(obj, self._torch.Tensor):
            return None
        if id(obj) not in self._seen:
            from .tensors import add_tensor

            known = add_tensor(obj, self._paths.get(id(obj)), self._snapshot, self._memory)
            if known is None:
                return None
            self._seen[id(obj)] = obj, known  # keeps the object alive: its id must not be used again
        return self._seen[id(obj)][1]


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
