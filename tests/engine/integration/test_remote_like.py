"""Large data where nothing is shared: over the node's socket, and over SSH as to and from a remote machine."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterator

import pytest

from outrider import Local, Pool, compute

pytestmark = pytest.mark.anyio
ITEM_BYTES = 3_000_000


@pytest.fixture(scope="module", params=[Local(shared_memory=False), Local(as_remote=True)], ids=["socket", "SSH"])
async def remote(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    async with Pool(provider=request.param, nodes=2, console="silent") as pool:
        yield pool


def block(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest() * (ITEM_BYTES // 32)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@compute
def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@compute
def echo(value: object) -> object:
    return value


@compute
def blocks(n: int, size_bytes: int) -> Iterator[bytes]:
    for number in range(n):
        yield hashlib.sha256(str(number).encode()).digest() * (size_bytes // 32)


@compute
def digests(items: Iterator[bytes]) -> list[str]:
    return [hashlib.sha256(item).hexdigest() for item in items]


@compute
def echoes(items: Iterator[bytes]) -> Iterator[bytes]:
    yield from items


async def test_a_large_argument_arrives_whole(remote: Pool) -> None:
    data = block(1)
    assert await remote.run(digest_of(data)) == digest(data)


async def test_a_large_result_arrives_whole_and_is_the_callers_own(remote: Pool) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(1_000_000, dtype=float)
    result = await remote.run(echo(array))
    assert (result == array).all()
    result[0] = 5.0  # type: ignore[index]


async def test_a_large_exception_arrives_as_itself(remote: Pool) -> None:
    @compute
    def fails(data: bytes) -> None:
        raise ValueError(data)

    with pytest.raises(ValueError, match=r"^b'") as caught:
        await remote.run(fails(block(2)))
    assert caught.value.args == (block(2),)


async def test_many_large_tasks_at_once_do_not_mix(remote: Pool) -> None:
    jobs = [remote.submit(echo(block(number))) for number in range(12)]
    for number, job in enumerate(jobs):
        assert await job == block(number)


async def test_a_large_array_is_broadcast(remote: Pool) -> None:
    numpy = pytest.importorskip("numpy")

    @compute
    def total(array: object) -> float:
        return float(array.sum())  # type: ignore[attr-defined]

    array = numpy.ones(2_000_000)
    assert await remote.broadcast(total(array)) == [2e6, 2e6]


async def test_a_stream_of_large_items_comes_in_order(remote: Pool) -> None:
    came = [digest(item) async for item in remote.stream(blocks(24, ITEM_BYTES))]
    assert came == [digest(block(number)) for number in range(24)]


async def test_a_stream_of_large_items_goes_in_order(remote: Pool) -> None:
    sent = [block(number) for number in range(24)]
    assert await remote.run(digests(iter(sent))) == [digest(item) for item in sent]


async def test_large_items_stream_both_ways_at_once(remote: Pool) -> None:
    sent = [block(number) for number in range(12)]
    assert [item async for item in remote.stream(echoes(iter(sent)))] == sent


async def test_a_stream_of_large_items_can_be_left_early(remote: Pool) -> None:
    items = remote.stream(blocks(1000, ITEM_BYTES))
    async for item in items:
        assert item == block(0)
        break
    await items.aclose()
    assert await remote.run(echo(1)) == 1
