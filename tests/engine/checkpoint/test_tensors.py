"""Shards of a tensor that were saved, and the shards that are loaded from them: any cut into any other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

from outrider.engine.checkpoint.records import Damaged, Entry, Part
from outrider.engine.checkpoint.tensors import TensorLoader, saved, tensor_digest

ROWS, COLUMNS = 6, 4
WHOLE = torch.arange(ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS)


class Sharded(torch.Tensor):
    """A tensor of which this rank has the box at ``offset``, as of a `DTensor`."""

    offset: tuple[int, ...]
    local: Any

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(self.offset), self.local.shape)]

    def __get_tensor_shard__(self, index: Any) -> Any:
        assert tuple(index.offset) == self.offset
        return self.local


def cuts(size: int) -> st.SearchStrategy[list[int]]:
    return st.sets(st.integers(1, size - 1), max_size=3).map(lambda inner: [0, *sorted(inner), size])


def loader(rows: Sequence[int], columns: Sequence[int], into: object = None, *, without: int | None = None) -> Any:
    """Of a checkpoint in which a rank each saved a box between the cuts, but for the rank ``without``."""
    parts, contents = {}, {}
    for rank, ((top, bottom), (left, right)) in enumerate(product(pairwise(rows), pairwise(columns))):
        box = WHOLE[top:bottom, left:right].clone()
        extent = tuple(box.shape)
        entry = Entry(tensor_digest(box), "tensor", 0, ["w"], "float64", (ROWS, COLUMNS), (top, left), extent)
        contents[entry.digest] = saved(box)
        parts[rank] = Part(rank, 0, 1, 1, [] if rank == without else [entry], {}, {})
    return TensorLoader(into, parts, parts[0], lambda entry: contents[entry.digest])


@settings(max_examples=60, deadline=None)
@given(cuts(ROWS), cuts(COLUMNS))
def test_shards_are_put_together(rows: list[int], columns: list[int]) -> None:
    assert torch.equal(loader(rows, columns).load(0, False, False), WHOLE)


@settings(max_examples=60, deadline=None)
@given(cuts(ROWS), cuts(COLUMNS), st.data())
def test_a_shard_is_filled_from_shards_that_were_cut_otherwise(rows: list[int], columns: list[int], data: Any) -> None:
    top, left = data.draw(st.integers(0, ROWS - 1)), data.draw(st.integers(0, COLUMNS - 1))
    bottom, right = data.draw(st.integers(top + 1, ROWS)), data.draw(st.integers(left + 1, COLUMNS))
    target = torch.empty(ROWS, COLUMNS).as_subclass(Sharded)
    target.offset, target.local = (top, left), torch.full((bottom - top, right - left), -1.0)
    assert loader(rows, columns, {"w": target}).load(0, False, False) is target
    assert torch.equal(target.local.double(), WHOLE[top:bottom, left:right])


def test_a_shard_that_no_rank_saved_is_damage() -> None:
    with pytest.raises(Damaged, match="w has only 12 of 24 elements"):
        loader([0, 3, ROWS], [0, COLUMNS], without=1).load(0, False, False)
    target = torch.empty(ROWS, COLUMNS).as_subclass(Sharded)
    target.offset, target.local = (2, 0), torch.zeros(2, COLUMNS)
    with pytest.raises(Damaged, match="w has only 4 of 8 elements"):
        loader([0, 3, ROWS], [0, COLUMNS], {"w": target}, without=1).load(0, False, False)
