"""Kills of a cloud's clients at chosen moments. Each client is a process, so its death leaves no chance to clean up."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ....lazy_dataclass import dataclass

CLIENT_S = 120.0  # time limit of a client in seconds; without a kill, a client needs a few seconds
DELAYS_S = (0.0, 0.01, 0.05, 0.2)
# The program of a client: it launches two machines, ends one, and closes the fleet, even if the cloud does not respond.
# Its arguments: the name of its provider in the registry, the provider's options, further fields of its request, the
# pool's name, the method whose calls are counted ("module:Class.method"), the number of the call at which it dies, the
# moment of its death (before or after this call), and lines of Python to run first.
_CLIENT = """
import asyncio, importlib, json, os, signal, sys, threading
from contextlib import suppress

from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.providers.errors import ProviderError
from outrider.providers.registry import provider_class

name, options, request, pool, where, number, delay, before = sys.argv[1:]
exec(before)
module, _, path = where.partition(":")
owner, method = path.split(".")
owner = getattr(importlib.import_module(module), owner)
call, calls = getattr(owner, method), 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def counted(*given, **more):
    global calls
    calls += 1
    mine = calls == int(number)
    if mine and delay == "before":
        die()
    try:
        return await call(*given, **more)
    finally:
        if mine:
            threading.Timer(float(delay), die).start() if float(delay) else die()

async def main():
    async with provider_class(name)(**json.loads(options)).open(pool, EntryPoints()) as fleet:
        with suppress(ProviderError):
            first, *_ = await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", 2, **json.loads(request)), 2)
            await fleet.terminate([first.id])

setattr(owner, method, counted)
asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class Kill:
    """The kill of a client at its ``number``-th call. ``delay``: ``"before"`` the call, or this many seconds after its
    end.
    """

    number: int
    delay: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """The description of the clients to kill.

    ``call``: the call that is counted, as ``"module:Class.method"``. ``before``: lines of Python that the client runs
    first. ``request``: fields of the client's `LaunchRequest`, except for the key and the number of machines (two).
    """

    provider: str
    options: Mapping[str, Any]
    call: str
    before: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)


def moments(count: int, *, calls: int, seed: int) -> list[Kill]:
    """Choose the moments of kills, within a client's first ``calls`` calls.

    The moments directly before and after each call come first, mixed with random moments.
    """
    dice = random.Random(seed)  # noqa: S311 - reproducible by its seed
    sides = [Kill(number, delay) for number in range(1, calls + 1) for delay in ("before", "0")]
    dice.shuffle(sides)
    between = [Kill(dice.randint(1, calls), str(dice.choice(DELAYS_S))) for _ in range(count)]
    paired = [kill for pair in zip(sides, between, strict=False) for kill in pair]
    return [*paired, *between[len(sides) :]][:count]


async def kill_all(client: Client, kills: Sequence[Kill], *, at_once: int = 2) -> int:
    """Run a client for each kill. Return how many clients were killed: others ended before the call at which they
    should die.

    Raises:
        AssertionError: A client did not end, or failed by itself.
    """
    turn = asyncio.Semaphore(at_once)

    async def run(number: int, kill: Kill) -> bool:
        async with turn:
            arguments = (
                *(client.provider, json.dumps(dict(client.options)), json.dumps(dict(client.request))),
                *(f"killed-{number}", client.call, str(kill.number), kill.delay, client.before),
            )
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", _CLIENT, *arguments, stderr=subprocess.PIPE
            )
            try:
                _, output = await asyncio.wait_for(process.communicate(), CLIENT_S)
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            assert process.returncode in (0, -signal.SIGKILL), f"killed-{number}, {kill}: {output.decode()}"
            return process.returncode != 0

    return sum(await asyncio.gather(*(run(number, kill) for number, kill in enumerate(kills))))
