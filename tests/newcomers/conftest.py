"""Pools of local nodes: each module opens one, and all its tests use it, as a newcomer's first program does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import Pool, SyncPool


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    state: Path = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_STATE", str(state))
        yield
    assert list(state.glob("local/*")) == []


@pytest.fixture(scope="module")
def pool() -> Iterator[SyncPool]:
    """Its nodes can import these tests, as they can the modules beside a program that is started in its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parents[2])
        with Pool(nodes=2, console="silent") as pool:
            yield pool
