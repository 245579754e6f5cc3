"""The first step of opening a pool: the provider begins before we import the rest, and what nobody takes is ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, Spec
from outrider.engine import sync
from outrider.engine.client.opening import Opening
from outrider.providers.base import EntryPoints
from outrider.providers.errors import ProviderError
from outrider.providers.local.processes import children

pytestmark = pytest.mark.anyio

BEGINS = """
import sys
from outrider import Local, Pool

class Begun(BaseException):
    pass

class Watched(Local):
    def open(self, pool, entry_points):
        print(*({late} & sys.modules.keys()))
        raise Begun

try:
    {open}
except Begun:
    print("begun")
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


OURS = {"outrider.actors.pool", "outrider.engine.client.open_pool"}


@pytest.mark.parametrize(
    ("open_pool", "late"),
    [
        ("import asyncio; asyncio.run(Pool(provider=Watched(), nodes=1).__aenter__())", {*OURS, "anyio"}),
        ("Pool(provider=Watched(), nodes=1).__enter__()", {*OURS, "anyio", "asyncio", "concurrent.futures"}),
    ],
    ids=["async with", "with"],
)
def test_the_provider_begins_before_what_takes_long_is_imported(open_pool: str, late: set[str]) -> None:
    program = BEGINS.format(open=open_pool, late=late)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun"]


async def test_a_supervisor_that_no_pool_takes_is_ended_and_leaves_no_directory(tmp_path: Path) -> None:
    before = set(children())
    opening = Opening(Pool(provider=Local(state=tmp_path), nodes=1)._settings)
    begun = set(children()) - before
    assert begun
    assert [each.name for each in (tmp_path / "local").iterdir()] == [opening.tag]
    await opening.drop()
    assert not begun & set(children())  # of an earlier test one may have ended meanwhile
    assert not list((tmp_path / "local").iterdir())


@pytest.mark.parametrize("moment", ["_open_in", "_wait"])
def test_what_with_has_begun_is_ended_where_an_interrupt_comes_before_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def interrupted(pool: Any, *given: Any) -> Any:
        if len(given) == 2:  # what undoes the opening
            return pool._result(pool._start(*given))
        raise KeyboardInterrupt

    monkeypatch.setattr(sync.SyncPool, moment, interrupted)
    before = set(children())
    with pytest.raises(KeyboardInterrupt):
        Pool(provider=Local(state=tmp_path), nodes=1).__enter__()
    assert set(children()) <= before  # of an earlier test one may have ended meanwhile
    assert not list((tmp_path / "local").iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nobody closes its socket
def test_what_with_has_begun_ends_by_itself_where_no_thread_can_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = set(children())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="new thread"):
            Pool(provider=Local(state=tmp_path), nodes=1).__enter__()
    (supervisor,) = set(children()) - before
    os.waitpid(supervisor, 0)
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
