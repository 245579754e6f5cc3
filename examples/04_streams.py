"""Values stream out of a task, and into one, each side waiting for the other."""

import itertools
from collections.abc import Iterator

import anyio

from outrider import Local, Pool, compute


@compute
def collatz(number: int) -> Iterator[int]:
    """A generator's values arrive as they are produced."""
    while number != 1:
        yield number
        number = number // 2 if number % 2 == 0 else 3 * number + 1


@compute
def running_mean(readings: Iterator[float]) -> Iterator[float]:
    """A parameter annotated Iterator is streamed to the node: no side ever holds the whole of it."""
    total = 0.0
    for count, reading in enumerate(readings, start=1):
        total += reading
        yield total / count


@compute
def total(numbers: list[int]) -> int:
    return sum(numbers)


def sensor() -> Iterator[float]:
    """An endless source on the client, read no faster than the task consumes it."""
    for tick in itertools.count():
        yield float(tick)


async def main() -> None:
    async with Pool(provider=Local(), nodes=2) as pool:
        print("collatz:", [number async for number in pool.stream(collatz(6))])
        first, second = await (collatz(4) @ pool)  # on every node, an iterator for each rank
        print("on two nodes:", [number async for number in first], [number async for number in second])
        numbers, four = await ((collatz(2) & total([1, 3])) >> pool)  # in a group
        print("in a group:", [number async for number in numbers], four)
        async for mean in pool.stream(running_mean(sensor())):
            print("mean so far:", mean)
            if mean >= 2:
                break  # ends the task and stops reading the sensor


if __name__ == "__main__":
    anyio.run(main)
