"""Clients killed at any moment from their first call to their last: what they had ends, and is launched once.

``OUTRIDER_STRESS=200`` kills at so many moments (with ``-o faulthandler_timeout=0``: it takes longer than tests may);
``OUTRIDER_SEED`` chooses others.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import pytest
from bars.site import until

pytestmark = pytest.mark.anyio
MOMENTS = int(os.environ.get("OUTRIDER_STRESS", "10"))
SEED = int(os.environ.get("OUTRIDER_SEED", "0"))
AT_ONCE = 5
LEASE_S, SHUTDOWN_S = 3.0, 60.0
CLIENT_S = 120.0  # of which, without a kill, it needs a few
CALLS = 26  # of a pool of one node, from its beginning to its end; some more where its poller has to wait
DELAYS_S = (0.0, 0.05, 0.2, 0.6, 1.5)
CLIENT = """
import asyncio, os, signal, sys, threading, time
from outrider import AWS, Pool
from outrider.providers.aws.api import Api

name, number, delay = sys.argv[1], int(sys.argv[2]), sys.argv[3]
call, calls = Api.call, 0

def die():
    os.write(1, repr(time.time()).encode())
    os.kill(os.getpid(), signal.SIGKILL)

async def counted(self, *operation, **parameters):
    global calls
    calls += 1
    mine = calls == number
    if mine and delay == "before":
        die()
    try:
        return await call(self, *operation, **parameters)
    finally:
        if mine:
            threading.Timer(float(delay), die).start() if float(delay) else die()

def where():
    for task in asyncio.all_tasks():
        task.print_stack()

async def main():
    asyncio.get_running_loop().call_later(float(sys.argv[5]), where)
    provider = AWS(address="private")
    async with Pool(provider=provider, name=name, nodes=1, lease=float(sys.argv[4]), console="silent"):
        pass

Api.call = counted
asyncio.run(main())
"""


class Kill(NamedTuple):
    """At the ``number``-th call: before it is made, or so many seconds after it has ended."""

    number: int
    delay: str


def moments() -> list[Kill]:
    """Every call's two sides come before any is repeated."""
    dice = random.Random(SEED)
    sides = [Kill(number, delay) for number in range(1, CALLS + 1) for delay in ("before", "0")]
    dice.shuffle(sides)
    between = [Kill(dice.randint(1, CALLS), str(dice.choice(DELAYS_S))) for _ in range(MOMENTS)]
    paired = [kill for pair in zip(sides, between, strict=False) for kill in pair]
    return [*paired, *between[len(sides) :]][:MOMENTS]


async def test_clients_killed_at_any_moment_leave_nothing_for_long(cloud, collected):
    turn = asyncio.Semaphore(AT_ONCE)
    died: dict[str, float] = {}
    lived: list[str] = []

    async def run(pool: str, kill: Kill) -> None:
        async with turn:
            arguments = (pool, str(kill.number), kill.delay, str(LEASE_S), str(0.9 * CLIENT_S))
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", CLIENT, *arguments, stdout=subprocess.PIPE
            )
            try:
                said, _ = await asyncio.wait_for(process.communicate(), CLIENT_S)
            except TimeoutError:
                pytest.fail(f"{pool}, to be killed at {kill}, has not ended within {CLIENT_S:g} s")
            finally:
                if process.returncode is None:
                    process.kill()
            died[pool] = float(said or time.time())
            if process.returncode == 0:
                lived.append(pool)  # it made fewer calls
            else:
                assert process.returncode == -signal.SIGKILL, f"{pool}: {kill}"

    kills = {f"killed-{index}": kill for index, kill in enumerate(moments())}
    await asyncio.gather(*(run(pool, kill) for pool, kill in kills.items()))
    await until(lambda: not cloud.instances("pending", "running", "shutting-down"), LEASE_S + SHUTDOWN_S)
    await collected()
    assert cloud.left() == []
    launches = [each.tags["outrider:launch"] for each in cloud.instances()]
    assert len(launches) == len(set(launches)), "one machine for one intent"
    pool_of = {each.id: each.tags["outrider:pool"].rpartition("-")[0] for each in cloud.instances()}  # unique names
    longest_s = 0.0
    for bill in cloud.ledger.bills:
        pool = pool_of[bill.id]
        unowned_s = bill.unowned_seconds([(0.0, died[pool])], time.time())
        assert unowned_s <= LEASE_S + SHUTDOWN_S, f"{pool}: {kills[pool]}"
        longest_s = max(longest_s, unowned_s)
    print(f"{len(kills) - len(lived)} clients killed, {len(launches)} machines, at most {longest_s:.1f} s unowned")
    assert len(lived) < len(kills) / 3
