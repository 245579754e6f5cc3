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
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
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
MORE_BYTES = 512 << 20  # that four ranks may have, besides what they have before they begin
ROUND_S = 200.0  # in which all ranks import torch's compiler, as DDP does, on a machine that is busy
How = Literal["exit", "exception", "SIGKILL", "memory", "memory_gb"]
CGROUPS = Path("/sys/fs/cgroup")


def fail(how: How) -> None:
    match how:
        case "exit":
            os._exit(3)
        case "exception":
            raise LookupError("no such shard")
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory" | "memory_gb":
            kept = [b"x" * (256 << 20) for _ in range(6)]  # more than either may have, and less than hurts
            while kept:
                pass


@compute
def reduce_until(broken: int, at: int, how: How) -> None:
    """All ranks reduce without end, until one of them fails."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    for step in range(STEPS):
        if step == at and dist.get_rank() == broken:
            fail(how)
        dist.all_reduce(total)


@compute
def train_until(broken: int, at: int, how: How) -> None:
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
            fail(how)
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
            memory = error.first.error.out_of_memory  # of another test, where no cgroup counts its own
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


class Group:
    """A control group in which a pool's nodes are: the kernel kills there who takes more than it may have."""

    def __init__(self, hierarchy: Path, limit: str, usage: str, ours: Path) -> None:
        self._ours, self._made = ours, hierarchy / f"outrider-test-{os.getpid()}"
        self._limit, self._usage = self._made / limit, self._made / usage

    def make(self) -> None:
        self._made.mkdir()
        try:
            self._limit.write_text(str(1 << 40))
        except OSError:
            self._made.rmdir()
            raise

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is started meanwhile is in the group, and stays there."""
        (self._made / "cgroup.procs").write_text(str(os.getpid()))
        try:
            yield
        finally:
            (self._ours / "cgroup.procs").write_text(str(os.getpid()))

    @contextmanager
    def limited(self, more_bytes: int) -> Iterator[None]:
        self._limit.write_text(str(int(self._usage.read_text()) + more_bytes))
        try:
            yield
        finally:
            self._limit.write_text(str(1 << 40))

    def remove(self) -> None:
        for _ in range(600):
            with suppress(OSError):  # somebody is in it for a moment yet
                self._made.rmdir()
                return
            time.sleep(0.1)
        self._made.rmdir()


@pytest.fixture
def group() -> Iterator[Group | None]:
    """None: no group of our own can be made here."""
    ours = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in Path("/proc/self/cgroup").read_text().splitlines()}
    if "memory" in ours:
        hierarchy = CGROUPS / "memory"
        group = Group(hierarchy, "memory.limit_in_bytes", "memory.usage_in_bytes", hierarchy / ours["memory"][1:])
    else:
        group = Group(CGROUPS, "memory.max", "memory.current", CGROUPS / ours.get("", "/")[1:])
    try:
        group.make()
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        group.remove()


@pytest.mark.parametrize("rounds", [ROUNDS, pytest.param(3, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("what", [reduce_until, train_until], ids=["all_reduce", "DDP"])
async def test_the_rank_that_failed_first_is_named_whatever_ended_it(
    what: Callable[..., Call[None]], rounds: int, group: Group | None
) -> None:
    hows: tuple[How, ...] = ("exit", "exception", "SIGKILL", "memory_gb", *(("memory",) if group else ()))
    if what is train_until and rounds == 1:
        hows = ("exception", "SIGKILL")
    wrong = {how: list[str]() for how in hows}
    pool = Pool(provider=Local(), nodes=RANKS, plugins=[plugins.torch()], console="silent")
    async with AsyncExitStack() as stack:
        with group.inside() if group else nullcontext():
            await stack.enter_async_context(pool)
        for place, how in enumerate(hows):
            for round_ in range(rounds):
                broken, at = (place + round_) % RANKS, Random(f"{round_} {how}").randrange(STEP)
                call = what(broken, at, how)
                call = call.with_(memory_gb=LIMIT_GB) if how == "memory_gb" else call
                with group.limited(MORE_BYTES) if group and how == "memory" else nullcontext():
                    error = await failure(pool, call, f"{how}, round {round_}, rank {broken} at step {at}")
                if error.first.rank != broken or not told(error, how):
                    wrong[how].append(f"rank {broken} at step {at}: {error.message}")
    for how, each in wrong.items():
        print(f"{what.__name__}: {how}: {rounds - len(each)} of {rounds} right")
    assert not any(wrong.values()), "\n".join(f"{how}: {said}" for how, each in wrong.items() for said in each)
