"""Read a rank's state from a complete checkpoint and verify every byte of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..api.errors import CheckpointError
from .records import FORMAT, CheckpointId, Damaged, Entry, Manifest, Part, checked, digest, part_of
from .snapshot import restored
from .store import Piece, Store


def read(store: Store, at: CheckpointId, rank: int, into: object = None) -> Any:
    """The state that rank ``rank`` of this world resumes with: the one that rank ``rank % world_size`` saved.

    Raises:
            Damaged: a part of it is missing, or is not what was written.
            CheckpointError: the storage does not answer, or a newer version of Outrider wrote the checkpoint.
    """
    manifest = Manifest.load(_got(store, at.manifest))
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"{store.url}/{at.folder} has format {manifest.format}, which this version of Outrider does not know: "
            "update it.",
            url=store.url,
        )
    parts = [
        Part.load(checked(_got(store, f"{at.folder}/{name}"), name, (size, expected)))
        for name, (size, expected) in manifest.files.items()
        if part_of(name) is not None
    ]
    where = {name: place for part in parts for name, place in part.where.items()}
    first = {part.rank: part for part in parts if part.number == 0}
    try:
        own = first[rank % manifest.world_size]
    except (KeyError, ZeroDivisionError):
        raise Damaged("the manifest does not name the files of every rank") from None

    def content(entry: Entry) -> Piece:
        place = where.get(entry.digest)
        if place is None:
            raise Damaged(f"nobody wrote {entry.name or entry.kind}")
        try:
            data = store.read(f"{at.folder}/{place.file}", place.start, place.length)
        except FileNotFoundError:
            raise Damaged(f"{place.file} is gone") from None
        if entry.kind != "tensor" and digest(data) != entry.digest:
            raise Damaged(f"{place.file} is not what was written")
        return data

    loading = _tensors(into, first, own, content)
    state = restored(own.entries, content, loading)
    loading.finish()
    return state


def _got(store: Store, key: str) -> bytes:
    try:
        return store.get(key)
    except FileNotFoundError:
        raise Damaged(f"{key} is gone") from None


def _tensors(into: object, first: dict[int, Part], own: Part, content: Callable[[Entry], Piece]) -> Any:
    if into is None and all(entry.kind != "tensor" for entry in own.entries):
        return _NoTensors()
    from .loading import Loading
    from .tensors import opened

    return Loading(into, first, own.rank, lambda entry: opened(content(entry), entry))


class _NoTensors:
    def __call__(self, *_: object) -> Any:
        raise Damaged("its pickle names tensors that are not there")

    def finish(self) -> None:
        pass
