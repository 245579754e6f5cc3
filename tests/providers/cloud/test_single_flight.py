"""What is made once for all who need it."""

from __future__ import annotations

import anyio
import pytest

from outrider.providers.cloud.caching import OncePerKey, Shared
from outrider.providers.errors import BadRequest, NoCapacity, ProviderError
from outrider.providers.shared.side_by_side import only

pytestmark = pytest.mark.anyio


class Maker:
    def __init__(self, *results: str | Exception) -> None:
        self.results = list(results)
        self.made = 0
        self.may = anyio.Event()

    async def __call__(self) -> str:
        self.made += 1
        await self.may.wait()
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


async def test_shared_result_is_computed_once() -> None:
    got: list[str] = []

    async def get() -> None:
        got.append(await shared.get())

    async with anyio.create_task_group() as tasks:
        shared = Shared(tasks, make := Maker("it"))
        shared.start()
        for _ in range(3):
            tasks.start_soon(get)
        await anyio.wait_all_tasks_blocked()
        make.may.set()
    assert got == ["it"] * 3
    assert make.made == 1


async def test_transient_error_is_retried_by_a_later_caller_and_others_are_kept() -> None:
    async with anyio.create_task_group() as tasks:
        make = Maker(NoCapacity("not now", retry_after_s=1.0), BadRequest("never"))
        make.may.set()
        shared = Shared(tasks, make)
        with pytest.raises(NoCapacity):
            await shared.get()
        for _ in range(2):
            with pytest.raises(BadRequest):
                await shared.get()
        assert make.made == 2


async def test_cancelled_caller_does_not_stop_the_computation() -> None:
    async with anyio.create_task_group() as tasks:
        shared = Shared(tasks, make := Maker("it"))
        with anyio.move_on_after(0):
            await shared.get()
        make.may.set()
        assert await shared.get() == "it"
        assert make.made == 1


async def test_stop_waits_for_the_end() -> None:
    async with anyio.create_task_group() as tasks:
        shared = Shared(tasks, Maker("it"))
        await shared.stop()
        shared.start()
        await shared.stop()
        with pytest.raises(ProviderError, match="closing"):
            await shared.get()


async def test_each_key_has_a_result_of_its_own_which_is_made_once() -> None:
    made: list[str] = []
    may = anyio.Event()

    async def make(key: str) -> list[str]:
        made.append(key)
        await may.wait()
        if made.count(key) == 1 and key == "fails":
            raise ProviderError("not now")
        return [key]

    results = OncePerKey(make)
    async with anyio.create_task_group() as tasks:
        for key in ("a", "b", "a"):
            tasks.start_soon(results.get, key)
        await anyio.wait_all_tasks_blocked()
        assert made == ["a", "b"]
        may.set()
    first = await results.get("a")
    assert made == ["a", "b"]
    with pytest.raises(ProviderError):
        await results.get("fails")
    assert await results.get("fails") == ["fails"]
    results.forget("a", ["a"])  # equal, and yet another one
    assert await results.get("a") is first
    results.forget("a", first)
    assert await results.get("a") is not first


def test_of_several_errors_the_providers_is_told() -> None:
    error = BadRequest("no")
    assert only(ExceptionGroup("", [ValueError(), ExceptionGroup("", [error])])) is not None
    assert only(ExceptionGroup("", [ValueError(), error])) is error
    assert only(error) is error
