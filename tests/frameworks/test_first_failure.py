"""The rank that failed first is named, though the others fail by it and may be heard of sooner: torch over gloo.

Each way to fail is played in bare collectives and in DDP: three times by `make nightly`, and once for each change, but
two ways alone in DDP then, since each of its ranks imports torch's compiler. Rank and step follow from the round and
the way. This plays each 50 times, and prints how often the right rank was named; pytest's own limit for a test would
end it::

    OUTRIDER_FIRST_FAILURES=50 pytest -s -o faulthandler_timeout=0 tests/frameworks/test_first_failure.py
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Literal

import pytest

from outrider import Call, Local, Pool, compute, plugins
from outrider.errors import BroadcastFailed, TaskKilled

pytestmark = pytest.mark.anyio
ROUNDS = int(os.environ.get("OUTRIDER_FIRST_FAILURES", "1"))
RANKS, STEPS, STEP = 4, 1_000_000, 30
LIMIT_GB = 1.0
ROUND_S = 200.0  # in which all ranks import torch's compiler, as DDP does, on a machine that is busy
How = Literal["exit", "exception", "SIGKILL", "memory", "memory_gb"]
CGROUPS = Path("/sys/fs/cgroup")


def fail(how: How, group: str) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "exception":
            raise LookupError("no such shard")
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            Path(group, "cgroup.procs").write_text(str(os.getpid()))
            bytearray(1 << 30)  # more than the group may have
        case "memory_gb":
            kept = [b"x" * (256 << 20) for _ in range(6)]  # more than the task may have, and less than hurts
            while kept:
                pass


@compute
def reduce_until(broken: int, at: int, how: How, group: str) -> None:
    """All ranks reduce without end, until one of them fails."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    for step in range(STEPS):
        if step == at and dist.get_rank() == broken:
            fail(how, group)
        dist.all_reduce(total)


@compute
def train_until(broken: int, at: int, how: How, group: str) -> None:
    """All ranks train one model, until one of them fails between a forward and a backward."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    layers = [torch.nn.Linear(64, 64) for _ in range(4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.02)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(STEPS):
        loss = model(torch.randn(8, 64)).square().mean()
        if step == at and torch.distributed.get_rank() == broken:
            fail(how, group)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def told(error: BroadcastFailed, how: How) -> bool:
    match how, error.first.error:
        case "exit", TaskKilled(exit_code=3):
            return "exit status 3" in error.message
        case "exception", LookupError():
            return "LookupError: no such shard" in error.message
        case "SIGKILL", TaskKilled(signal=signal.SIGKILL):
            memory = error.first.error.out_of_memory  # of another test: the kernel counts them together
            return ("it ran out of memory" if memory else "SIGKILL") in error.message
        case "memory", TaskKilled(out_of_memory=True):
            return "it ran out of memory" in error.message
        case "memory_gb", TaskKilled(out_of_memory=True):
            return f"of its memory_gb={LIMIT_GB:g}" in error.message
        case _:
            return False


async def failure(pool: Pool, call: Call[None], what: str) -> BroadcastFailed:
    """Return how a broadcast of the call fails. One that hangs fails the test, with all that its ranks are at."""
    broadcast = asyncio.ensure_future(pool.broadcast(call))
    await asyncio.wait([broadcast], timeout=ROUND_S)
    if not broadcast.done():
        stacks = "\n".join(str(stack) for stack in await pool.stacks())
        broadcast.cancel()
        pytest.fail(f"{what} hung for {ROUND_S:g} s:\n{stacks}")
    with pytest.raises(BroadcastFailed) as caught:
        await broadcast
    return caught.value


@pytest.fixture
def group() -> Iterator[str]:
    """A control group of little memory, in which the kernel kills who takes more; "" where none can be made."""
    memory = next((each for each in (CGROUPS / "memory", CGROUPS) if (each / "cgroup.procs").exists()), CGROUPS)
    made = memory / f"outrider-test-{os.getpid()}"
    limit = made / ("memory.max" if memory == CGROUPS else "memory.limit_in_bytes")
    try:
        made.mkdir()
        limit.write_text(str(64 << 20))
    except OSError:
        yield ""
    else:
        yield str(made)
    with suppress(OSError):
        made.rmdir()


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("what", [reduce_until, train_until], ids=["all_reduce", "DDP"])
async def test_the_rank_that_failed_first_is_named_whatever_ended_it(
    what: Callable[..., Call[None]], rounds: int, group: str
) -> None:
    hows: tuple[How, ...] = ("exit", "exception", "SIGKILL", "memory_gb", *(("memory",) if group else ()))
    if what is train_until and rounds == 1:
        hows = ("exception", "SIGKILL")
    wrong = {how: list[str]() for how in hows}
    async with Pool(provider=Local(), nodes=RANKS, plugins=[plugins.torch()], console="silent") as pool:
        for place, how in enumerate(hows):
            for round_ in range(rounds):
                broken, at = (place + round_) % RANKS, Random(f"{round_} {how}").randrange(STEP)
                call = what(broken, at, how, group)
                call = call.with_(memory_gb=LIMIT_GB) if how == "memory_gb" else call
                error = await failure(pool, call, f"{how}, round {round_}, rank {broken} at step {at}")
                if error.first.rank != broken or not told(error, how):
                    wrong[how].append(f"rank {broken} at step {at}: {error.message}")
    for how, each in wrong.items():
        print(f"{what.__name__}: {how}: {rounds - len(each)} of {rounds} right")
    assert not any(wrong.values()), "\n".join(f"{how}: {said}" for how, each in wrong.items() for said in each)
