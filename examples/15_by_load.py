"""A pool that has as many nodes as there is work: none, then up to four, and none again."""

import time
from collections.abc import AsyncIterator

import anyio

from outrider import Local, Nodes, Pool, compute, events


@compute
def render(frame: int) -> int:
    time.sleep(4)
    return frame


async def main() -> None:
    nodes = Nodes(min=0, max=4, scale="load", idle=1)  # where machines cost money and take long to boot: minutes
    async with Pool(provider=Local(), nodes=nodes) as pool, anyio.create_task_group() as tasks:
        tasks.start_soon(report, pool.events())
        frames = await pool.map(render, range(5))
        print("frames:", len(frames))


async def report(happened: AsyncIterator[events.Event]) -> None:
    """Print every change, until the last node is to leave."""
    async for event in happened:
        if isinstance(event, events.PoolScaled):
            print(f"{event.before} -> {event.wanted}: {event.reason}", flush=True)
            if event.wanted == 0:
                return


if __name__ == "__main__":
    anyio.run(main)
