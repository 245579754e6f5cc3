"""FETCH-5: files of two nodes never share a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.client.file_transfer import fetch_folder

FETCHES = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.none() | st.integers(0, 3), st.integers(0, 5)))


def check(folder_of: Callable[..., Path], fetches: list[tuple[str, int | None, int]]) -> None:
    owners: dict[Path, int] = {}
    nodes: dict[Path, int] = {}
    for to, rank, node in fetches:
        folder = folder_of(owners, Path(to), rank, node)
        assert nodes.setdefault(folder, node) == node, "FETCH-5"
        assert folder == folder_of(owners, Path(to), rank, node), "the same node has the same folder again"


@given(FETCHES)
@settings(deadline=None)
def test_no_folder_has_the_files_of_two_nodes(fetches: list[tuple[str, int | None, int]]) -> None:
    check(fetch_folder, fetches)


def test_folders_are_those_of_ranks_where_nothing_moves() -> None:
    owners: dict[Path, int] = {}
    assert [fetch_folder(owners, Path("out"), rank, 7 - rank) for rank in (0, 1)] == [
        Path("out/node-0"),
        Path("out/node-1"),
    ]
    assert fetch_folder(owners, Path("out"), 0, 9) == Path("out/node-id-9")
    assert fetch_folder(owners, Path("out"), None, 7) == Path("out/node-id-7")


def test_folders_by_rank_alone_falls_without_its_guard() -> None:
    """FETCH-5"""
    with pytest.raises(AssertionError, match="FETCH-5"):
        check(lambda _owners, to, rank, _node: to / f"node-{rank}", [("a", 0, 1), ("a", 0, 2)])
