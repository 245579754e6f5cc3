"""Checkpoints in the format of torch.distributed.checkpoint: its planner for sharded tensors, and its metadata file."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from .records import ByteRange, Entry, Part


def fill(targets: dict[str, Any], chunks: Mapping[str, Sequence[Entry]], read: Callable[[Entry], Any]) -> None:
    """Fill tensors that are sharded over these ranks from shards that other ranks wrote."""
    stored = Metadata({name: _described(each) for name, each in chunks.items()})
    reader = _Reader(stored, {_index(entry): entry for each in chunks.values() for entry in each}, read)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")  # `no_dist` says that already
        load(targets, storage_reader=reader, no_dist=True)


def metadata(parts: Sequence[Part]) -> bytes:
    """The file ``.metadata``, with which the reader of torch.distributed.checkpoint finds the tensors of a folder.

    Where ranks have different tensors of one name that are not shards of one tensor, it describes the lowest rank's.
    """
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    where = {name: place for part in parts for name, place in part.where.items()}
    chunks: dict[str, dict[tuple[int, ...], Entry]] = {}
    order: dict[str, tuple[str | int, ...]] = {}
    for part in sorted(parts, key=lambda part: (part.rank, part.number)):
        for entry in part.entries:
            if entry.name is not None and not entry.vacant:
                chunks.setdefault(entry.name, {}).setdefault(entry.offset, entry)
                order[entry.name] = tuple(entry.path or ())
    stored = {
        _index(entry): _StorageInfo(*_place(where[entry.digest])) for each in chunks.values() for entry in each.values()
    }
    described: dict[str, STORAGE_TYPES] = {name: _described(list(each.values())) for name, each in chunks.items()}
    return pickle.dumps(Metadata(described, planner_data=order, storage_data=stored))


class _Reader(StorageReader):
    """Read for torch.distributed.checkpoint the shards that its plan for this rank asks for."""

    def __init__(self, stored: Metadata, entries: dict[MetadataIndex, Entry], read: Callable[[Entry], Any]) -> None:
        self._metadata, self._entries, self._read = stored, entries, read

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Future[None]:
        by_chunk: dict[MetadataIndex, list[Any]] = {}
        for item in plan.items:
            by_chunk.setdefault(item.storage_index, []).append(item)
        for index, items in by_chunk.items():
            content = self._read(self._entries[MetadataIndex(index.fqn, index.offset)])
            for item in items:
                part = content
                for axis, (at, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    part = part.narrow(axis, at, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:  # noqa: ARG003
        return True


def _place(where: ByteRange) -> tuple[str, int, int]:
    return where.file, where.start, where.length


def _index(entry: Entry) -> MetadataIndex:
    return MetadataIndex(entry.name or "", torch.Size(entry.offset))


def _described(chunks: Sequence[Entry]) -> TensorStorageMetadata:
    first = chunks[0]
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=getattr(torch, first.dtype)),
        size=torch.Size(first.shape),
        chunks=[ChunkStorageMetadata(torch.Size(each.offset), torch.Size(each.extent)) for each in chunks],
    )
