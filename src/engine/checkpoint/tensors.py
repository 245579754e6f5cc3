"""The tensors of a state: copies in main memory, files in the format of ``torch.save``, and loading."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from ..api.errors import SerializationError
from .records import Damaged, Entry, Part, Piece, dotted, places

DCP_METADATA = ".metadata"
_PLAIN = torch.Tensor, torch.nn.Parameter


class EntriesOf(Protocol):
    """The parts of a `snapshot.Snapshot` to which tensors are added."""

    entries: list[Entry]
    writers: dict[int, bool]
    streams: set[Any]
    copies: list[tuple[memoryview, Any, Any]]

    def add(self, entry: Entry, content: Any) -> int: ...


class MemoryOf(Protocol):
    """The attributes and methods of a `snapshot.CopyMemory` that are needed to copy tensors."""

    kept: dict[int, Any]
    known: dict[int, Any]

    def block(self, index: int, size_bytes: int) -> memoryview | None: ...


def add_tensor(
    source: Any, path: list[str | int] | None, snapshot: EntriesOf, memory: MemoryOf
) -> tuple[Any, ...] | None:  # the persistent id for the pickle
    """Add a tensor to a snapshot, outside of the pickle, and return its persistent id.

    Return None for a tensor that must be put into the pickle, such as a sparse tensor or one of a subclass.
    """
    if (again := _added_again(source, path, snapshot, memory)) is not None:
        return again
    is_parameter = type(source) is torch.nn.Parameter
    shape, offset, mine = tuple(source.shape), (0,) * source.dim(), None
    local = source.detach()
    if hasattr(source, "__create_chunk_list__"):  # a DTensor
        if path is None:
            raise SerializationError(
                "The state has a DTensor inside another object: keep it in nested dicts and lists, to be found again "
                "by its name."
            )
        if any(placement.is_partial() for placement in source.placements):
            raise SerializationError(
                f"The DTensor {dotted(path)} of the state is a partial sum: call its redistribute() before saving.",
                path=dotted(path),
            )
        chunks = source.__create_chunk_list__()
        offset, mine = (tuple(chunks[0].offsets), _writes(source, path)) if chunks else (offset, False)
        local = local.to_local()
    elif type(source) not in _PLAIN or not _is_plain(local):
        return None
    with torch.no_grad():
        kept, block = _copied(local, snapshot, memory)
    entry = Entry("", "tensor", kept.nbytes, path, _name(kept.dtype), shape, offset, tuple(kept.shape))
    index = snapshot.add(entry, kept)
    if block is not None and type(source) in _PLAIN:
        memory.known[index] = type(source), source.shape, source.dtype, path, block, kept, entry
    if mine is not None:
        snapshot.writers[index] = mine
    return index, is_parameter, bool(source.requires_grad)


def _added_again(
    source: Any, path: list[str | int] | None, snapshot: EntriesOf, memory: MemoryOf
) -> tuple[Any, ...] | None:
    """Add a tensor to a snapshot by the recorded facts about the tensor at the same place in the previous snapshot.

    Return its persistent id; None if the tensor differs from that tensor. Usually it does not, as each save of a
    training has the same tensors.
    """
    index = len(snapshot.entries)
    known = memory.known.get(index)
    if known is None:
        return None
    kind, shape, dtype, its_path, its_block, kept, entry = known
    like = type(source) is kind and source.shape == shape and source.dtype is dtype and path == its_path
    if not like or source.layout is not torch.strided or source.is_meta:
        return None
    block = memory.block(index, entry.size)
    if block is None or block is not its_block:  # no facts that fit; `add_tensor` will request the memory again
        return None
    snapshot.copies.append((block, kept, source))
    snapshot.add(entry, kept)
    return index, kind is torch.nn.Parameter, source.requires_grad


def _copied(source: Any, snapshot: EntriesOf, memory: MemoryOf) -> tuple[Any, memoryview | None]:
    """Copy a tensor to main memory, or plan the copy.

    Returns:
        (the copy, None). A copy of a GPU's tensor is in pinned memory, and its stream may still be copying. If the
        memory of the snapshot is one block: (a tensor in the block that is filled later, its memory in the block).
    """
    index, pinned = len(snapshot.entries), source.is_cuda
    block = memory.block(index, source.numel() * source.element_size()) if source.numel() else None
    if block is not None:
        placed = torch.frombuffer(block, dtype=source.dtype).view(source.shape)
        snapshot.copies.append((block, placed, source))
        return placed, block
    kept, like = memory.kept.get(index), (source.shape, source.dtype, pinned)
    if not isinstance(kept, torch.Tensor) or (kept.shape, kept.dtype, kept.is_pinned()) != like:
        memory.kept[index] = kept = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
    kept.copy_(source, non_blocking=pinned)
    if pinned:
        snapshot.streams.add(torch.cuda.current_stream(source.device))
    return kept, None


def _is_plain(source: Any) -> bool:
    return source.layout is torch.strided and not source.is_quantized and source.device.type != "meta"


def _writes(source: Any, path: list[str | int]) -> bool:
    """Return whether this rank writes its shard to the storage. If several ranks have the same shard, only one does."""
    coordinate = source.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    spread = int.from_bytes(hashlib.blake2b(repr(path).encode(), digest_size=4).digest(), "little")
    for place, placement, size in zip(coordinate, source.placements, source.device_mesh.shape, strict=True):
        if placement.is_replicate() and place != spread % size:
            return False
    return True


def tensor_digest(content: Any) -> str:
    hashed = hashlib.blake2b(f"{_name(content.dtype)} {tuple(content.shape)}".encode(), digest_size=32)
    hashed.update(content.contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def saved(content: Any) -> Piece:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getbuffer()


def raw(content: Any) -> Piece:
    return memoryview(content.contiguous().reshape(-1).view(torch.uint8).numpy())


def lying_in(block: memoryview, entry: Entry) -> Any:
    """Return a tensor that uses the memory of ``block`` without a copy, with the dtype and shape of ``entry``."""
    dtype = getattr(torch, entry.dtype)
    return torch.frombuffer(block, dtype=dtype).view(entry.extent) if block else torch.empty(entry.extent, dtype=dtype)


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def located(state: object) -> list[tuple[Any, list[str | int]]]:
    """Return (tensor, path) for each tensor in nested dicts and sequences.

    A tensor that occurs at several paths is returned with the first path only.
    """
    result: dict[int, tuple[Any, list[str | int]]] = {}
    names: set[str] = set()

    def visit(value: object, path: list[str | int], name: str) -> None:
        if isinstance(value, torch.Tensor):
            if path and name not in names and id(value) not in result:
                names.add(name)
                result[id(value)] = value, path
        elif isinstance(value, Mapping):
            prefix = f"{name}." if path else ""
            for key, each in value.items():
                visit(each, [*path, part := str(key)], prefix + part)
        elif isinstance(value, list | tuple):
            prefix = f"{name}." if path else ""
            for index, each in enumerate(value):
                visit(each, [*path, index], f"{prefix}{index}")

    visit(state, [], "")
    return list(result.values())


class TensorLoader:
    """Loads the tensors of a state: as new tensors in main memory, or into the tensors of ``into``.

    Args:
        into: A state whose tensors are filled in place.
        parts: The saved part of each rank.
        own: This rank's part.
        read: Returns the bytes of an entry.
        lying_in: Converts an entry's bytes to a tensor. None: the bytes have the format that `saved` writes, and are
            verified.
    """

    def __init__(
        self,
        into: object,
        parts: Mapping[int, Part],
        own: Part,
        read: Callable[[Entry], Piece],
        lying_in: Callable[[memoryview, Entry], Any] | None = None,
    ) -> None:
        self._lying_in = lying_in
        self._targets = {dotted(path): tensor for tensor, path in located(into)}
        self._missing = set(self._targets)
        self._parts = parts
        self._own = own
        self._read = read

    def load(self, index: int, is_parameter: bool, requires_grad: bool) -> Any:
        entry = self._own.entries[index]
        target = self._targets.get(entry.name or "")
        if target is not None:
            self._missing.discard(entry.name or "")
            self._fill(target, entry)
            return target
        if entry.sharded:
            tensor = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
            self._copy_shards(entry, tensor, [0] * tensor.dim())
        else:
            tensor = self._opened(entry)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_(requires_grad)

    def finish(self) -> None:
        """Raise a ValueError if ``into`` has tensors that the checkpoint lacks."""
        if self._missing:
            names = ", ".join(sorted(self._missing)[:5])
            raise ValueError(f"load(into=...): the checkpoint has no {names}: leave out of into what was not saved")

    def _fill(self, target: Any, entry: Entry) -> None:
        if tuple(target.shape) != entry.shape:
            raise ValueError(
                f"load(into=...): {entry.name} has the shape {tuple(target.shape)}, and {entry.shape} in the "
                "checkpoint: make it as it was when it was saved"
            )
        if not hasattr(target, "__create_chunk_list__"):
            self._copy_shards(entry, target, [0] * target.dim())
            return
        from torch.distributed.checkpoint.metadata import MetadataIndex

        for chunk in target.__create_chunk_list__():  # for a DTensor, the only chunk is this rank's shard
            local = target.__get_tensor_shard__(MetadataIndex(entry.name or "", chunk.offsets))
            if local.numel():
                self._copy_shards(entry, local, chunk.offsets)

    def _copy_shards(self, entry: Entry, target: Any, offset: Sequence[int]) -> None:
        """Fill ``target`` from the saved shards of a tensor. ``target`` is the box of that tensor that begins at
        ``offset``.
        """
        filled = 0
        for shard in self._shards(entry):
            overlap = [
                (max(mine, theirs), min(mine + size, theirs + extent))
                for mine, size, theirs, extent in zip(offset, target.shape, shard.offset, shard.extent, strict=True)
            ]
            if all(start < end for start, end in overlap):
                with torch.no_grad():
                    source = self._opened(shard)[_box(overlap, shard.offset)]
                    target[_box(overlap, offset)].copy_(source)
                filled += source.numel()
        if filled != target.numel():
            raise Damaged(f"{entry.name} has only {filled} of {target.numel()} elements")

    def _shards(self, entry: Entry) -> list[Entry]:
        """Return the shards of a tensor. If several ranks saved the same shard, prefer the one that this rank saved."""
        if not entry.sharded:
            return [entry]
        by_offset: dict[tuple[int, ...], Entry] = {}
        for part in (self._own, *self._parts.values()):
            for each in part.entries:
                if each.name == entry.name and not each.vacant:
                    by_offset.setdefault(each.offset, each)
        return list(by_offset.values())

    def _opened(self, entry: Entry) -> Any:
        data = self._read(entry)
        if self._lying_in is not None:
            return self._lying_in(memoryview(data), entry)
        try:
            content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
            if tuple(content.shape) == entry.extent and tensor_digest(content) == entry.digest:
                return content
        except Exception as error:  # torch raises errors of many types for bytes that it did not write
            raise Damaged(f"the tensor {entry.name or ''} cannot be read: {type(error).__name__}") from error
        raise Damaged(f"the tensor {entry.name or ''} is not what was written")


def _box(bounds: Sequence[tuple[int, int]], offset: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(start - at, end - at) for (start, end), at in zip(bounds, offset, strict=True))


def dcp_metadata(parts: Sequence[Part]) -> bytes:
    """Return the content of the file by which torch.distributed.checkpoint (DCP) finds a checkpoint's tensors.

    If ranks have different tensors of the same name that are not shards of one tensor, describe the tensor of the
    lowest rank.
    """
    from torch.distributed.checkpoint import metadata as dcp
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    where = places(parts)
    shards: dict[str, dict[torch.Size, Entry]] = {}
    order: dict[str, tuple[str | int, ...]] = {}
    for part in sorted(parts, key=lambda part: (part.rank, part.number)):
        for entry in part.entries:
            if entry.name is not None and not entry.vacant:
                shards.setdefault(entry.name, {}).setdefault(torch.Size(entry.offset), entry)
                order[entry.name] = tuple(entry.path or ())
    described: dict[str, dcp.STORAGE_TYPES] = {}
    stored: dict[dcp.MetadataIndex, _StorageInfo] = {}
    for name, by_offset in shards.items():
        first = next(iter(by_offset.values()))
        described[name] = dcp.TensorStorageMetadata(
            properties=dcp.TensorProperties(dtype=getattr(torch, first.dtype)),
            size=torch.Size(first.shape),
            chunks=[dcp.ChunkStorageMetadata(offset, torch.Size(each.extent)) for offset, each in by_offset.items()],
        )
        for offset, each in by_offset.items():
            stored[dcp.MetadataIndex(name, offset)] = _StorageInfo(*where[each.digest])
    return pickle.dumps(dcp.Metadata(described, planner_data=order, storage_data=stored))
