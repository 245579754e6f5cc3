"""Inside an async service: two pools in one loop, watched through events and snapshots; they print nothing."""

from collections import Counter

import anyio

from outrider import Local, Pool, compute


@compute
def words(text: str) -> int:
    return len(text.split())


@compute
def longest(text: str) -> str:
    return max(text.split(), key=len)


async def answer(request: str, counting: Pool, searching: Pool) -> str:
    count = counting.submit(words(request))
    word = await searching.run(longest(request))
    return f"{request!r}: {await count} words, the longest is {word}"


async def watch(pool: Pool, seen: Counter[str]) -> None:
    async for event in pool.events():
        seen[type(event).__name__] += 1


async def main() -> None:
    seen: Counter[str] = Counter()
    async with (
        anyio.create_task_group() as background,  # ends with the events, which end with the pool
        Pool(provider=Local(), nodes=2, console="silent") as counting,
        Pool(provider=Local(), nodes=1, console="silent") as searching,
    ):
        background.start_soon(watch, counting, seen)
        for request in ["a pool in a service", "two pools in one loop", "nothing is printed by them"]:
            print(await answer(request, counting, searching))
        for node in counting.snapshot().nodes:
            print(f"node {node.node}: {node.state}")
    print(f"tasks finished: {seen['TaskFinished']}")


if __name__ == "__main__":
    anyio.run(main)
