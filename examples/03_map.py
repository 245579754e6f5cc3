"""One function over many items: pi by throwing darts, on four nodes."""

import random

import anyio

from outrider import Local, Pool, compute

DARTS = 20_000


@compute
def hits(seed: int) -> int:
    generator = random.Random(seed)
    return sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(DARTS))


async def main() -> None:
    async with Pool(provider=Local(), nodes=4) as pool:
        # Awaited, a map is the list of its results, in the order of its items.
        counts = await pool.map(hits, range(100))
        print(f"pi is about {4 * sum(counts) / (100 * DARTS):.3f}")

        # Iterated, it hands them over as they come. Items are taken from the source only as results are consumed:
        # at most `limit` are under way, so the source may be endless.
        thrown = total = 0
        async for count in pool.map(hits, iter(range(100, 10**9)), limit=16, ordered=False):
            thrown, total = thrown + DARTS, total + count
            if thrown == 60 * DARTS:
                break
        print(f"pi is about {4 * total / thrown:.3f}")


if __name__ == "__main__":
    anyio.run(main)
