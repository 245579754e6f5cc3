"""The file by which the reader of torch.distributed.checkpoint (DCP) finds the tensors of a checkpoint."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from .decisions import places
from .records import Entry, Part


def metadata(parts: Sequence[Part]) -> bytes:
    """The content of the file ``.metadata``.

    Where ranks have different tensors of one name that are not shards of one tensor, it describes the lowest rank's.
    """
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    where = places(parts)
    shards: dict[str, dict[torch.Size, Entry]] = {}
    order: dict[str, tuple[str | int, ...]] = {}
    for part in sorted(parts, key=lambda part: (part.rank, part.number)):
        for entry in part.entries:
            if entry.name is not None and not entry.vacant:
                shards.setdefault(entry.name, {}).setdefault(torch.Size(entry.offset), entry)
                order[entry.name] = tuple(entry.path or ())
    described: dict[str, STORAGE_TYPES] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    for name, by_offset in shards.items():
        first = next(iter(by_offset.values()))
        described[name] = TensorStorageMetadata(
            properties=TensorProperties(dtype=getattr(torch, first.dtype)),
            size=torch.Size(first.shape),
            chunks=[ChunkStorageMetadata(offset, torch.Size(each.extent)) for offset, each in by_offset.items()],
        )
        for offset, each in by_offset.items():
            stored[MetadataIndex(name, offset)] = _StorageInfo(*where[each.digest])
    return pickle.dumps(Metadata(described, planner_data=order, storage_data=stored))
