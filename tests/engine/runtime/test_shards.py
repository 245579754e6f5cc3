"""`shard`: every item on exactly one rank, the same order everywhere, the type kept."""

import array
import subprocess
import sys
from collections import UserList, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import instance_info, shard
from outrider.engine.runtime import instance_info as shards


class World:
    """Runs `shard` as each rank of a world."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def shards(self, size: int, *data: Any, **options: Any) -> list[Any]:
        parts = []
        with self._monkeypatch.context() as patch:
            for rank in range(size):
                info = replace(instance_info(), rank=rank, world_size=size)
                patch.setattr(shards, "instance_info", lambda info=info: info)
                parts.append(shard(*data, **options))
        return parts


@pytest.fixture(scope="module")
def world() -> World:
    return World(pytest.MonkeyPatch())


lengths = st.integers(0, 60)
sizes = st.integers(1, 9)


@given(n=lengths, size=sizes, shuffle=st.booleans(), seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_every_item_is_on_exactly_one_rank(
    world: World, *, n: int, size: int, shuffle: bool, seed: int, epoch: int
) -> None:
    parts = world.shards(size, list(range(n)), shuffle=shuffle, seed=seed, epoch=epoch)

    assert sorted(chain(*parts)) == list(range(n))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(n=lengths, size=sizes, shuffle=st.booleans(), seed=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_dropping_the_last_makes_all_ranks_equal_and_repeats_nothing(
    world: World, n: int, size: int, shuffle: bool, seed: int
) -> None:
    parts = world.shards(size, list(range(n)), shuffle=shuffle, seed=seed, drop_last=True)

    assert {len(part) for part in parts} == {n // size}
    items = list(chain(*parts))
    assert len(set(items)) == len(items)


@given(n=lengths, size=sizes, seed=st.integers(0, 5), epoch=st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_ranks_stride_through_one_permutation(world: World, n: int, size: int, seed: int, epoch: int) -> None:
    whole = shard(list(range(n)), shuffle=True, seed=seed, epoch=epoch)
    parts = world.shards(size, list(range(n)), shuffle=True, seed=seed, epoch=epoch)

    assert parts == [whole[rank::size] for rank in range(size)]


def test_without_shuffle_it_is_modulo_striding(world: World) -> None:
    assert world.shards(3, list("abcdefg")) == [["a", "d", "g"], ["b", "e"], ["c", "f"]]
    assert world.shards(3, list("abcdefg"), drop_last=True) == [["a", "d"], ["b", "e"], ["c", "f"]]


def test_the_order_follows_from_seed_and_epoch_alone_in_every_process() -> None:
    code = "from outrider import shard; print(shard(list(range(20)), shuffle=True, seed=3, epoch=1))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()

    assert told == str(shard(list(range(20)), shuffle=True, seed=3, epoch=1))
    others = [shard(list(range(20)), shuffle=True, seed=s, epoch=e) for s, e in ((3, 0), (3, 2), (2, 1), (1, 3))]
    assert told not in map(str, others)


def test_several_are_cut_alike_and_come_back_together(world: World) -> None:
    import numpy as np

    for xs, ys in world.shards(3, np.arange(10), [str(i) for i in range(10)], shuffle=True, seed=1):
        assert [str(x) for x in xs] == ys


def test_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="equally long, not 3 and 4"):
        shard([1, 2, 3], (1, 2, 3, 4))


class Point(NamedTuple):
    x: int
    y: int


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        list(range(10)),
        tuple(range(10)),
        UserList(range(10)),
        deque(range(10)),
        array.array("d", range(10)),
        bytes(range(10)),
        bytearray(range(10)),
    ],
    ids=lambda data: type(data).__name__,
)
def test_the_type_of_a_sequence_stays(world: World, data: Sequence[Any], shuffle: bool) -> None:
    parts = world.shards(3, data, shuffle=shuffle)

    assert {type(part) for part in parts} == {type(data)}
    assert sorted(item for part in parts for item in part) == list(data)


def test_a_range_stays_a_range_until_it_is_shuffled(world: World) -> None:
    assert world.shards(3, range(10)) == [range(0, 10, 3), range(1, 10, 3), range(2, 10, 3)]
    assert {type(part) for part in world.shards(3, range(10), shuffle=True)} == {list}


def test_a_sequence_that_cannot_be_built_anew_becomes_a_list(world: World) -> None:
    assert world.shards(2, Point(1, 2), shuffle=True)[0] in ([1], [2])


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("n", [0, 2, 10])
def test_arrays_tensors_and_frames_are_cut_along_the_first_axis(world: World, n: int, shuffle: bool) -> None:
    import numpy as np
    import pandas as pd
    import torch

    rows = np.arange(2 * n).reshape(n, 2)
    for data in (rows, torch.from_numpy(rows), pd.DataFrame(rows, columns=["a", "b"]), pd.Series(range(n))):
        parts = world.shards(4, data, shuffle=shuffle)
        assert {type(part) for part in parts} == {type(data)}
        assert sum(len(part) for part in parts) == n
    firsts = [row[0] for part in world.shards(4, rows, shuffle=shuffle) for row in part.tolist()]
    assert sorted(firsts) == list(range(0, 2 * n, 2))


def test_a_frames_index_travels_along() -> None:
    import pandas as pd

    frame = pd.DataFrame({"a": [1, 2, 3]}, index=["x", "y", "z"])
    assert sorted(shard(frame, shuffle=True, seed=4).index) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("data", "fix"),
    [
        ("text", "give it a list"),
        ({1: 2}, "give it a list"),
        ({1, 2}, "give it a list"),
        (iter([1]), "it takes a sequence"),
        (5, "it takes a sequence"),
    ],
)
def test_what_has_no_order_or_length_is_refused(data: Any, fix: str) -> None:
    with pytest.raises(TypeError, match=fix):
        shard(data)


def test_a_dataset_class_is_cut_by_its_indexes() -> None:
    class Dataset:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> int:
            return index

    with pytest.raises(TypeError, match=r"shard\(range\(len\(dataset\)\)\)|shard\(range\(len\(data\)\)\)"):
        shard(Dataset())


def test_an_array_without_an_axis_is_refused() -> None:
    import numpy as np

    with pytest.raises(TypeError, match="without an axis"):
        shard(np.array(3))


def test_libraries_that_are_not_used_are_not_imported() -> None:
    code = (
        "import sys; from outrider import shard, stdout, stderr, silent, instance_info\n"
        "shard([1, 2, 3]); print(sorted({'numpy', 'torch', 'pandas', 'anyio', 'asyncio'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()
    assert told == "[]"


def test_outside_a_pool_it_is_all_of_the_data() -> None:
    assert shard([1, 2, 3]) == [1, 2, 3]
    assert shard([1], [2]) == ([1], [2])
