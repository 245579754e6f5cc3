"""The rank that failed first is named, though the others fail by it and may be heard of sooner: torch over gloo."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from outrider import Local, Pool, compute, plugins
from outrider.errors import BroadcastFailed, TaskKilled

pytestmark = pytest.mark.anyio
RANKS = 4
How = Literal["exit", "exception", "SIGKILL", "memory"]
CGROUPS = Path("/sys/fs/cgroup")


@compute
def reduce_until(broken: int, how: How, group: str) -> None:
    """All ranks reduce without end, until one of them fails."""
    import torch
    import torch.distributed as dist

    total = torch.ones(1)
    for step in range(1_000_000):
        dist.all_reduce(total)
        if step == 20 and dist.get_rank() == broken:
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


def told(error: BroadcastFailed, how: How) -> bool:
    match how, error.first.error:
        case "exit", TaskKilled(exit_code=3):
            return "exit status 3" in error.message
        case "exception", LookupError():
            return "LookupError: no such shard" in error.message
        case "SIGKILL", TaskKilled(signal=signal.SIGKILL):
            return "SIGKILL" in error.message
        case "memory", TaskKilled(out_of_memory=True):
            return "it ran out of memory" in error.message
        case _:
            return False


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


async def test_the_rank_that_failed_first_is_named_whatever_ended_it(group: str) -> None:
    rounds = int(os.environ.get("OUTRIDER_FIRST_FAILURES", "2"))
    async with Pool(provider=Local(), nodes=RANKS, plugins=[plugins.torch()], console="silent") as pool:
        for round_ in range(rounds):
            hows: tuple[How, ...] = ("exit", "exception", "SIGKILL", *(("memory",) if group else ()))
            for index, how in enumerate(hows):
                broken = (round_ + index) % RANKS
                with pytest.raises(BroadcastFailed) as caught:
                    await pool.broadcast(reduce_until(broken, how, group))
                assert (caught.value.first.rank, told(caught.value, how)) == (broken, True), caught.value.message
                assert f"reduce_until failed on rank {broken} of {RANKS}" in caught.value.message
                assert "3 ranks followed within" in caught.value.message
