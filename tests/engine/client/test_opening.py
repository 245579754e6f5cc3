"""The first step of opening a pool: the provider begins before we import the rest, and what nobody takes is ended."""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, Spec
from outrider.engine.client.opening import Opening
from outrider.providers.base import EntryPoints
from outrider.providers.errors import ProviderError
from outrider.providers.local.processes import children

pytestmark = pytest.mark.anyio

BEGINS = """
import asyncio, sys
from outrider import Local, Pool

class Begun(BaseException):
    pass

class Watched(Local):
    def open(self, pool, entry_points):
        print(*(name for name in ("outrider.actors.pool", "outrider.engine.client.open_pool") if name in sys.modules))
        raise Begun

try:
    asyncio.run(Pool(provider=Watched(), nodes=1).__aenter__())
except Begun:
    print("begun")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_provider_begins_before_the_pool_imports_its_actors() -> None:
    done = subprocess.run([sys.executable, "-c", BEGINS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun"]


async def test_a_supervisor_that_no_pool_takes_is_ended_and_leaves_no_directory(tmp_path: Path) -> None:
    before = set(children())
    opening = Opening(Pool(provider=Local(state=tmp_path), nodes=1)._settings)
    assert set(children()) > before
    assert [each.name for each in (tmp_path / "local").iterdir()] == [opening.tag]
    await opening.drop()
    assert set(children()) == before
    assert not list((tmp_path / "local").iterdir())


async def test_providers_that_have_not_begun_are_not_begun_to_be_ended(tmp_path: Path) -> None:
    """Several are opened one after the other, when the pool enters them."""
    opened: list[str] = []

    class Watched(Local):
        def open(self, pool: str, entry_points: EntryPoints) -> AbstractAsyncContextManager[Any]:
            opened.append(pool)
            return Local.open(self, pool, entry_points)

    first, second = (Watched(state=tmp_path / name) for name in ("a", "b"))
    opening = Opening(Pool(Spec(provider=first), Spec(provider=second), nodes=1)._settings)
    await opening.drop()
    assert opened == []
    async with opening.take(opening.tag):
        assert opened == [opening.tag, f"{opening.tag}-2"]


async def test_what_was_taken_is_not_dropped(tmp_path: Path) -> None:
    opening = Opening(Pool(provider=Local(state=tmp_path), nodes=1)._settings)
    async with opening.take(opening.tag):
        await opening.drop()
        assert (tmp_path / "local" / opening.tag).is_dir()


async def test_what_cannot_begin_is_told_by_whoever_enters_it(tmp_path: Path) -> None:
    (tmp_path / "local").write_text("no folder")
    opening = Opening(Pool(provider=Local(state=tmp_path), nodes=1)._settings)
    with pytest.raises(ProviderError, match="local"):
        async with opening.take(opening.tag):
            pass
