"""Tensors of a state that is loaded: new ones in main memory, or the caller's own, filled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .records import Damaged, Entry, Part
from .snapshot import paths

ReadTensor = Callable[[Entry], Any]


class Loading:
    """Makes the tensors of a state: new ones in main memory, or those of ``into`` filled."""

    def __init__(self, into: object, parts: Mapping[int, Part], rank: int, read: ReadTensor) -> None:
        self._targets: dict[str, Any] = {}
        found = paths(into, torch.Tensor)
        by_id = {id(each): each for each in _tensors(into)}
        for key, path in found.items():
            self._targets[".".join(map(str, path))] = by_id[key]
        self._wanted = set(self._targets)
        self._parts = parts
        self._rank = rank
        self._read = read
        self._distributed: dict[str, Any] = {}

    def __call__(self, index: int, how: tuple[Any, ...]) -> Any:
        entry = self._parts[self._rank].entries[index]
        is_parameter, requires_grad = how
        target = self._targets.get(entry.name) if entry.name is not None else None
        if target is not None:
            self._fill(target, entry)
            return target
        made = self._assembled(entry) if entry.sharded else self._read(entry)
        if is_parameter:
            return torch.nn.Parameter(made, requires_grad=requires_grad)
        return made.requires_grad_(requires_grad)

    def finish(self) -> None:
        """Fill the tensors of ``into`` that are sharded over ranks, all at once.

        Raises:
            ValueError: ``into`` has tensors that the checkpoint does not have.
        """
        if self._wanted:
            names = ", ".join(sorted(self._wanted)[:5])
            raise ValueError(f"load(into=...): the checkpoint has no {names}")
        if self._distributed:
            from .dcp import fill

            fill(self._distributed, {name: list(self._chunks(name).values()) for name in self._distributed}, self._read)

    def _fill(self, target: Any, entry: Entry) -> None:
        name = entry.name or ""
        self._wanted.discard(name)
        if tuple(target.shape) != entry.shape:
            raise ValueError(
                f"load(into=...): {name} has the shape {tuple(target.shape)}, in the checkpoint {entry.shape}"
            )
        if entry.sharded or hasattr(target, "__create_chunk_list__"):
            self._distributed[name] = target
        else:
            with torch.no_grad():
                target.copy_(self._read(entry))

    def _assembled(self, entry: Entry) -> Any:
        whole = torch.empty(entry.shape, dtype=getattr(torch, entry.dtype))
        filled = 0
        for chunk in self._chunks(entry.name).values():
            box = tuple(slice(at, at + extent) for at, extent in zip(chunk.offset, chunk.extent, strict=True))
            whole[box] = self._read(chunk)
            filled += math.prod(chunk.extent)
        if filled != whole.numel():
            raise Damaged(f"{entry.name} has only {filled} of {whole.numel()} elements")
        return whole

    def _chunks(self, name: str | None) -> dict[tuple[int, ...], Entry]:
        """The shards of a tensor by their offset; this rank's own where several ranks wrote the same one."""
        order = [self._parts[self._rank], *self._parts.values()]
        found: dict[tuple[int, ...], Entry] = {}
        for part in order:
            for each in part.entries:
                if each.name == name and not each.vacant:
                    found.setdefault(each.offset, each)
        return found


def _tensors(value: object) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [found for each in value.values() for found in _tensors(each)]
    if isinstance(value, list | tuple):
        return [found for each in value for found in _tensors(each)]
    return []
