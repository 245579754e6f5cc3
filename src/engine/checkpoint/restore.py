"""A rank's state from a complete checkpoint, every byte of it verified."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from ..api.errors import CheckpointError, SerializationError
from .decisions import first_parts, places
from .records import FORMAT, CheckpointId, Damaged, Entry, Manifest, Part, Piece, checked, digest, is_part
from .store import Store


def restore(store: Store, at: CheckpointId, rank: int, into: object = None) -> Any:
    """The state that rank ``rank`` of this world resumes with: the one that rank ``rank % world_size`` saved.

    Raises `Damaged` where a part of it is missing or is not what was written, `CheckpointError` where the storage does
    not answer or a newer version of Outrider wrote it, `SerializationError` where it cannot be unpickled here.
    """
    manifest = Manifest.load(_content(store, at.manifest))
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"{store.url}/{at.folder} has format {manifest.format}, which this version of Outrider does not know: "
            "update Outrider here, or on the nodes.",
            url=store.url,
        )
    parts = [
        Part.load(checked(_content(store, f"{at.folder}/{name}"), name, wanted))
        for name, wanted in manifest.files.items()
        if is_part(name)
    ]
    where, first = places(parts), first_parts(parts)
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
        if entry.kind != "tensor" and digest(data) != entry.digest:  # that of a tensor is checked when it is loaded
            raise Damaged(f"{place.file} is not what was written")
        return data

    if into is None and all(entry.kind != "tensor" for entry in own.entries):
        return _unpickled(own.entries, read, None)
    from .tensors import TensorLoader

    loader = TensorLoader(into, first, own, read)
    state = _unpickled(own.entries, read, loader.load)
    loader.finish()
    return state


def _content(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except FileNotFoundError:
        raise Damaged(f"{key} is gone") from None


def _unpickled(entries: list[Entry], read: Callable[[Entry], Piece], load_tensor: Callable[..., Any] | None) -> Any:
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
        self._load_tensor = load_tensor
        self._loaded: dict[int, Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        index, *how = pid
        if index not in self._loaded:
            assert self._load_tensor is not None, "the pickle names a tensor, and the rank has none"
            self._loaded[index] = self._load_tensor(index, *how)
        return self._loaded[index]
