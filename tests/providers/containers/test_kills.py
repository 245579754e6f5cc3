"""Programs that are killed at a moment drawn from a seed: whatever they were at, no container outlives its lease."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from .podman import IMAGE, USR, Podman

pytestmark = pytest.mark.anyio
LEASE_S = 2.0
FIRST_LEASE_S = 30.0  # longer by so much until a client has renewed it
LIVES_S = 5.0  # in which a program starts its pool, uses it and leaves it
MORE_S = 30.0  # for Podman to remove them on a busy machine
PROGRAM = """
import sys
from outrider import Containers, Pool, compute

@compute
def double(number):
    return 2 * number

provider = Containers(sys.argv[1], runtime="podman", network=False, volumes=[sys.argv[2]])
print("begun", flush=True)
with Pool(provider=provider, nodes=2, lease=float(sys.argv[3]), console="silent") as pool:
    print(double(21) >> pool, flush=True)
"""


async def killed(program: Path, seed: int) -> None:
    command = [sys.executable, str(program), IMAGE, USR, str(LEASE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=dict(os.environ)) as process:
        assert process.stdout is not None
        assert await anyio.to_thread.run_sync(process.stdout.readline) == b"begun\n"
        await anyio.sleep(random.Random(seed).uniform(0.0, LIVES_S))
        process.send_signal(signal.SIGKILL)
        await anyio.to_thread.run_sync(process.wait)


async def nothing_is_left_after(seeds: range, containers: Podman, folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    async with anyio.create_task_group() as tasks:
        for seed in seeds:
            tasks.start_soon(killed, folder / "program.py", seed)
    died_at = time.monotonic()
    until = died_at + LEASE_S + FIRST_LEASE_S + MORE_S
    # First those who might make one: a `podman run` outlives its client.
    while left := await anyio.to_thread.run_sync(lambda: containers.at_work or containers.names):
        assert time.monotonic() < until, f"seeds {seeds}: {left}"
        await anyio.sleep(0.5)
    print(f"seeds {seeds}: {len(seeds)} clients killed, nothing left {time.monotonic() - died_at:.1f} s after the last")


async def test_killed_clients_leave_no_container(containers: Podman, tmp_path: Path) -> None:
    await nothing_is_left_after(range(3), containers, tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, 200, 5))
async def test_many_killed_clients_leave_no_container(containers: Podman, tmp_path: Path, first: int) -> None:
    await nothing_is_left_after(range(first, first + 5), containers, tmp_path)
