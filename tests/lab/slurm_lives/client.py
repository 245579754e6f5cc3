"""A user's program in a process of its own, ``python -m slurm_lives.client WISH``: it says what befalls it, as JSON.

``WISH``: a `wish.Wish` as JSON. The variables ``LIFE_LOGIN``, ``LIFE_KEY``, ``LIFE_KNOWN_HOSTS`` and ``LIFE_PARTITION``
say where. It exits with 0 when its block ended without an error, and with 1 when one was raised.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from typing import Any

from lives.words import say, told

from outrider import Pool, Slurm, compute, instance_info
from slurm_lives.wish import Wish

ITEMS = 6  # of each map


@compute(on_loss="restart")
def squared(number: int, seconds: float) -> tuple[int, int, int]:
    """Its rank, how many there are, and the square."""
    time.sleep(seconds)
    info = instance_info()
    return info.rank, info.world_size, number * number


@compute
def doubled(number: int) -> int:
    return 2 * number


def opened(wish: Wish) -> Pool:
    provider = Slurm(
        os.environ["LIFE_LOGIN"],
        key=os.environ["LIFE_KEY"],
        known_hosts=os.environ["LIFE_KNOWN_HOSTS"],
        config=False,
        partition=os.environ["LIFE_PARTITION"],
        time=wish.time,
        exclusive=True,
    )
    limits: dict[str, Any] = {
        **({} if wish.boot_timeout_s is None else {"boot_timeout": wish.boot_timeout_s}),
        **({} if wish.start_timeout_s is None else {"start_timeout": wish.start_timeout_s}),
    }
    return Pool(name=wish.name, provider=provider, nodes=wish.nodes, lease=wish.lease_s, console="silent", **limits)


async def round_of(pool: Pool, wish: Wish, number: int) -> None:
    began = time.time()
    results = await pool.broadcast(squared(number, wish.round_s))
    mapped = [each async for each in pool.map(doubled, range(number, number + ITEMS))]
    right = [(rank, wish.nodes, number * number) for rank in range(wish.nodes)]
    right_map = [2 * each for each in range(number, number + ITEMS)]
    say(
        "round",
        number=number,
        began=began,
        right=results == right and mapped == right_map,
        results=[results, mapped],
    )


def reads(line: threading.Event) -> None:
    sys.stdin.readline()
    line.set()


async def main(wish: Wish) -> None:
    say("begun")
    line = threading.Event()
    threading.Thread(target=reads, args=(line,), daemon=True).start()
    async with opened(wish) as pool:
        say("ready")
        while wish.waits and not line.is_set():
            await asyncio.sleep(0.02)
        number = 0
        while number < wish.rounds or (wish.goes_on and not line.is_set()):
            await round_of(pool, wish, number)
            number += 1
        say("done")
    say("closed")


if __name__ == "__main__":
    try:
        asyncio.run(main(Wish.read(sys.argv[1])))
    except BaseException as error:  # noqa: BLE001 - what a user would see is the subject
        say("raised", **told(error))
        sys.exit(1)
