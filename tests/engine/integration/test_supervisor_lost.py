"""A pool whose supervisor is killed gets another, with nodes; where no node comes, calls say why the last did not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import pytest

from outrider import CapacityError, Local, Pool, compute, events

pytestmark = pytest.mark.anyio


@compute
def starts_another(said: str) -> None:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(said).write_text(str(child.pid))


@compute
def supervisor() -> int:
    """Of this worker: worker, fork server, supervisor."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


@compute
def two() -> int:
    return 2


async def kill_supervisor(pool: Pool) -> None:
    """Return when the pool has heard of it: before that, its nodes may answer still."""
    nodes, happened = pool.snapshot().ready, pool.events()
    os.kill(await pool.run(supervisor()), signal.SIGKILL)
    async for event in happened:
        nodes -= isinstance(event, events.NodeLost)
        if not nodes:
            return


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_pool_whose_supervisor_is_killed_goes_on_and_what_tasks_have_started_ends(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        await pool.run(starts_another(str(tmp_path / "said")))
        child = int((tmp_path / "said").read_text())
        assert lives(child)
        await kill_supervisor(pool)
        assert await pool.broadcast(two()) == [2, 2]
        assert not lives(child)


async def test_where_no_node_comes_the_error_says_why_the_last_one_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*given: object, **options: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    async with Pool(provider=Local(), nodes=1, console="silent", replace_timeout=1) as pool:
        monkeypatch.setattr(os, "posix_spawn", none)
        await kill_supervisor(pool)
        cause = r"cannot be started \(.*Resource temporarily unavailable\): so no replacement came"
        said = ""
        while "cannot be started" not in said:  # a launch that the supervisor's end cut off is the first
            with pytest.raises(CapacityError, match=rf"{cause}|killed by signal 9.*: so no replacement came") as told:
                await pool.run(two())
            said = str(told.value)
        with pytest.raises(CapacityError, match=cause):
            await pool.broadcast(two())
        monkeypatch.undo()
        while pool.snapshot().ready < 1:
            await asyncio.sleep(0.01)
        assert await pool.run(two()) == 2
