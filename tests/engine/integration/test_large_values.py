"""Large values: the event loop goes on while they are unpickled, and a call that pickles too much is told so."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from outrider import Local, Pool, SerializationError, compute
from outrider.engine.serialization import packer
from outrider.engine.serialization.payload import LONG_BYTES, Received

pytestmark = pytest.mark.anyio
HOOK = "outrider_test_large_values"  # of `sys`: the functions here come back as copies


class Large:
    """Unpickled by waiting for the event loop, which has to run for that."""

    def __reduce__(self) -> Any:
        return _loaded, (bytes(LONG_BYTES),)


def _loaded(content: bytes) -> int:
    vars(sys)[HOOK]()
    return len(content)


class Loading:
    """Of one test: a thread that the test before has left changes nothing here."""

    def __init__(self) -> None:
        self.begun, self.goes_on = threading.Event(), threading.Event()

    def wait_for_the_loop(self) -> None:
        self.begun.set()
        assert self.goes_on.wait(60), "the event loop stands still"

    async def has_begun(self) -> None:
        async with asyncio.timeout(60):
            while not self.begun.is_set():
                await asyncio.sleep(0.001)


class Broken:
    def __reduce__(self) -> Any:
        return _refused, (bytes(LONG_BYTES),)


def _refused(_content: bytes) -> None:
    raise ValueError("cannot be made here")


@compute
def large(_item: int = 0) -> Large:
    return Large()


@compute
def larges(n: int) -> Iterator[Large]:
    for _ in range(n):
        yield Large()


@compute
def broken() -> Broken:
    return Broken()


@pytest.fixture
def loading(monkeypatch: pytest.MonkeyPatch) -> Loading:
    loading = Loading()
    monkeypatch.setattr(sys, HOOK, loading.wait_for_the_loop, raising=False)
    return loading


@pytest.fixture
async def pool(loading: Loading) -> AsyncIterator[Pool]:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        yield pool


async def _stream(pool: Pool) -> list[Any]:
    return [value async for value in pool.stream(larges(2))]


async def _as_ready(pool: Pool) -> list[Any]:
    from outrider import gather

    return [value async for value in gather(large(), large(), stream=True) >> pool]


async def _two_wait(pool: Pool) -> list[Any]:
    job = pool.submit(large())

    async def wait() -> Any:
        return await job

    first, second = await asyncio.gather(wait(), wait())
    assert first is second
    return [first, job.result()]


async def _get(pool: Pool) -> Any:
    return await (await pool.put(Large())).get()


VERBS: dict[str, tuple[Callable[[Pool], Any], Any]] = {
    "run": (lambda pool: pool.run(large()), LONG_BYTES),
    "broadcast": (lambda pool: pool.broadcast(large()), [LONG_BYTES] * 2),
    "gather": (lambda pool: pool.gather(large(), large()), (LONG_BYTES,) * 2),
    "stream": (_stream, [LONG_BYTES] * 2),
    "gather, as they are ready": (_as_ready, [LONG_BYTES] * 2),
    "map": (lambda pool: pool.map(large, [1, 2])._collected(), [LONG_BYTES] * 2),
    "two wait for a job": (_two_wait, [LONG_BYTES] * 2),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_the_loop_goes_on_while_a_large_value_is_unpickled(pool: Pool, loading: Loading, verb: str) -> None:
    call, expected = VERBS[verb]

    async def let_go() -> None:
        await loading.has_begun()
        loading.goes_on.set()

    found, _ = await asyncio.gather(call(pool), let_go())
    assert found == expected


@pytest.mark.parametrize("verb", [*VERBS, "get"])
async def test_the_memory_that_a_large_value_came_in_is_given_back_off_the_loop(
    pool: Pool, loading: Loading, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To give back 4 GiB takes the kernel 0.4 s, in which the event loop would stand still."""
    given_back: list[tuple[bool, bool]] = []
    drop = Received.drop

    def dropped(received: Received) -> None:
        drop(received)
        given_back.append((received.data.closed, threading.current_thread() is threading.main_thread()))

    monkeypatch.setattr(Received, "drop", dropped)
    loading.goes_on.set()
    call, expected = VERBS.get(verb, (_get, LONG_BYTES))
    assert await call(pool) == expected
    values = len(expected) if isinstance(expected, list | tuple) else 1
    assert given_back == [(True, False)] * (1 if verb == "two wait for a job" else values)


async def test_who_waits_for_a_large_value_can_be_cancelled(pool: Pool, loading: Loading) -> None:
    waiting = asyncio.ensure_future(pool.run(large()))
    await loading.has_begun()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    loading.goes_on.set()


async def test_a_large_value_that_cannot_be_unpickled_is_an_error_of_its_call(pool: Pool) -> None:
    job = pool.submit(broken())
    with pytest.raises(SerializationError, match=r"result of broken.*cannot be made here"):
        await job
    with pytest.raises(SerializationError, match="cannot be made here"):
        job.result()


async def test_a_job_says_that_it_was_not_cancelled_without_unpickling_its_value(pool: Pool, loading: Loading) -> None:
    job = pool.submit(large())
    await asyncio.wait([job])  # type: ignore[type-var]
    assert not job.cancelled()
    assert repr(job).endswith("returned>")
    assert not loading.begun.is_set()


async def test_an_argument_that_is_too_large_to_be_pickled_is_warned_of_once(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packer, "WARNED_BYTES", 1 << 20)

    @compute
    def size(content: Any) -> int:
        return len(content)

    class Array:
        """Pickled with its memory out of band, which copies nothing."""

        def __reduce_ex__(self, _protocol: Any) -> Any:
            import pickle

            return bytes, (pickle.PickleBuffer(bytearray(1 << 21)),)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await pool.run(size(Array())) == 1 << 21
        assert await pool.run(size(bytes(1 << 21))) == 1 << 21  # which is not copied either
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert await pool.run(size(bytearray(1 << 21))) == 1 << 21
        assert await pool.run(size(bytearray(1 << 21))) == 1 << 21
    (warning,) = told
    assert re.search(r"2 MiB.*of size.*pool\.push.*Volume", str(warning.message))
    assert warning.filename == __file__
