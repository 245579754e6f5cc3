"""Tensors are copied, written and read one by one, in the format of ``torch.save``."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import torch

from ..api.errors import SerializationError
from .records import Damaged, Entry

if TYPE_CHECKING:
    from .snapshot import Snapshot
    from .store import Piece


class Copies:
    """Copies of tensors in main memory, pinned where they come from a GPU. The next snapshot reuses the memory."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._devices: set[Any] = set()

    def copy(self, index: int, source: Any) -> Any:
        pinned = source.is_cuda
        kept = self._kept.get(index)
        if kept is None or kept.shape != source.shape or kept.dtype != source.dtype or kept.is_pinned() != pinned:
            kept = torch.empty(source.shape, dtype=source.dtype, pin_memory=pinned)
            self._kept[index] = kept
        kept.copy_(source, non_blocking=pinned)
        if pinned:
            self._devices.add(source.device)
        return kept

    def settle(self) -> None:
        """Wait until all copies are done; they run side by side on their devices."""
        while self._devices:
            torch.cuda.current_stream(self._devices.pop()).synchronize()


def tensor(
    source: Any, path: list[str | int] | None, snapshot: Snapshot, copies: Copies
) -> tuple[Any, ...] | None:  # its persistent id
    """Add a tensor to a snapshot. None for tensors that must pickle themselves, such as sparse ones and subclasses."""
    is_parameter = type(source) is torch.nn.Parameter
    shape, offset, mine = tuple(source.shape), (0,) * source.dim(), None
    local = source.detach()
    if hasattr(source, "__create_chunk_list__"):  # DTensor
        if path is None:
            raise SerializationError("A DTensor must be in nested dicts and lists, to be found again by its name.")
        if any(placement.is_partial() for placement in source.placements):
            raise SerializationError(f"{'.'.join(map(str, path))} is a partial sum: redistribute it before saving.")
        chunks = source.__create_chunk_list__()
        offset, mine = (tuple(chunks[0].offsets), _writes(source, path)) if chunks else (offset, False)
        local = local.to_local()
    elif type(source) not in (torch.Tensor, torch.nn.Parameter) or not _is_plain(local):
        return None
    with torch.no_grad():
        kept = copies.copy(len(snapshot.entries), local)
    entry = Entry("", "tensor", kept.nbytes, path, _name(kept.dtype), shape, offset, tuple(kept.shape))
    index = snapshot.add(entry, lambda: content_digest(kept), lambda: _saved(kept))
    if mine is not None:
        snapshot.writers[index] = mine
    return index, is_parameter, bool(source.requires_grad)


def _is_plain(source: Any) -> bool:
    return source.layout is torch.strided and not source.is_quantized and source.device.type != "meta"


def _writes(source: Any, path: list[str | int]) -> bool:
    """Return whether this rank writes its shard: one of the ranks with the same shard does."""
    coordinate = source.device_mesh.get_coordinate()
    if coordinate is None:
        return False
    spread = int.from_bytes(hashlib.blake2b(repr(path).encode(), digest_size=4).digest(), "little")
    for place, placement, size in zip(coordinate, source.placements, source.device_mesh.shape, strict=True):
        if placement.is_replicate() and place != spread % size:
            return False
    return True


def content_digest(content: Any) -> str:
    hashed = hashlib.blake2b(f"{_name(content.dtype)} {tuple(content.shape)}".encode(), digest_size=32)
    hashed.update(content.contiguous().reshape(-1).view(torch.uint8).numpy())
    return hashed.hexdigest()


def _saved(content: Any) -> Piece:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getbuffer()


def opened(data: Piece, entry: Entry) -> Any:
    """Read a tensor from bytes; raises `Damaged`."""
    try:
        content = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if tuple(content.shape) == entry.extent and content_digest(content) == entry.digest:
            return content
    except Exception as error:  # torch raises various errors for bytes that are not its own
        raise Damaged(f"the tensor {entry.name or ''} cannot be read: {type(error).__name__}") from error
    raise Damaged(f"the tensor {entry.name or ''} is not what was written")


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
