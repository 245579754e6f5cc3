"""A user's program in a process of its own, ``python -m campaigns.client WISH``: it says what befalls it, as JSON.

``WISH``: a `wish.Wish` as JSON. It exits with 0 when its block ended without an error, and with 1 when one was raised.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from lives.words import say, told

from campaigns.wish import Wish
from outrider import AWS, Pool, compute, instance_info


@compute(on_loss="restart")
def squared(number: int, seconds: float) -> tuple[int, int, int]:
    """Its rank, how many there are, and the square."""
    time.sleep(seconds)
    info = instance_info()
    return info.rank, info.world_size, number * number


def opened(wish: Wish) -> Pool:
    provider = AWS(address="private")
    limits: dict[str, Any] = {
        **({} if wish.max_cost is None else {"max_cost": wish.max_cost}),
        **({} if wish.max_lifetime_s is None else {"max_lifetime": wish.max_lifetime_s}),
        **({} if wish.boot_timeout_s is None else {"boot_timeout": wish.boot_timeout_s}),
        "lease": wish.lease_s,
        "nodes": wish.nodes,
        "console": "silent",
    }
    if wish.attach:
        return Pool.attach(wish.name, provider=provider, **limits)
    return Pool(name=wish.name, provider=provider, allocation="spot" if wish.spot else "on-demand", **limits)


async def main(wish: Wish) -> None:
    say("begun")
    async with opened(wish) as pool:
        say("ready")
        if wish.waits:
            await asyncio.to_thread(sys.stdin.readline)
        for number in range(wish.rounds):
            results = await pool.broadcast(squared(number, wish.round_s))
            right = [(rank, wish.nodes, number * number) for rank in range(wish.nodes)]
            say("round", number=number, right=results == right, results=results)
        say("done")
    say("closed")


if __name__ == "__main__":
    try:
        asyncio.run(main(Wish.read(sys.argv[1])))
    except BaseException as error:  # noqa: BLE001 - what a user would see is the subject
        say("raised", **told(error))
        sys.exit(1)
