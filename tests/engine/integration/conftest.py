"""Pools of real local nodes. The tests of a module share one of four nodes, and leave it as it was.

Not those of a session: while an asynchronous fixture lives, anyio's plugin runs every test on that fixture's loop.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outrider import Local, Pool

from ..standstill import nodes_may_stand_still

NODES = 4


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    with nodes_may_stand_still():
        yield


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory of the tests' own; at the end nothing is left in it, and no process of ours either."""
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_STATE", str(state))
        yield state
    assert list(state.glob("local/*")) == []


@pytest.fixture(scope="module")
async def pool(_patience: None) -> AsyncIterator[Pool]:
    async with Pool(provider=Local(), nodes=NODES, console="silent") as pool:
        yield pool
