"""Pools of real local nodes, and a state directory of their own in which nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    state, before = tmp_path_factory.mktemp("state"), os.environ.get("OUTRIDER_STATE")
    os.environ["OUTRIDER_STATE"] = str(state)
    yield
    if before is None:
        del os.environ["OUTRIDER_STATE"]
    else:
        os.environ["OUTRIDER_STATE"] = before
    assert [path for path in state.rglob("*") if path.is_file()] == []
