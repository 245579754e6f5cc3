"""Clients that are killed at a moment drawn from a seed: whatever they were at, no container outlives its lease."""

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

from outrider.testing.clouds.shared.kills import Client, kill_all, moments

from .podman import IMAGE, USR, Podman

pytestmark = pytest.mark.anyio
LEASE_S = 2.0
FIRST_LEASE_S = 30.0  # longer by so much until a client has renewed it
LIVES_S = 5.0  # in which a program starts its pool, uses it and leaves it
MORE_S = 90.0  # for Podman to remove them on a busy machine
MANY, AT_ONCE = 200, 25
COMMANDS = 7  # that a client runs which is not killed, from its beginning to its end
SEED = int(os.environ.get("OUTRIDER_SEED", "1"))
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


async def nothing_is_left(containers: Podman) -> float:
    """Wait until every container has ended by its lease; return how long it took, in seconds."""
    died_at = time.monotonic()
    until = died_at + LEASE_S + FIRST_LEASE_S + MORE_S
    # First those who might make one: a `podman run` outlives its client.
    while left := await anyio.to_thread.run_sync(lambda: containers.at_work or containers.names):
        assert time.monotonic() < until, left
        await anyio.sleep(0.5)
    return time.monotonic() - died_at


async def test_killed_programs_leave_no_container(containers: Podman, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    async with anyio.create_task_group() as tasks:
        for seed in range(3):
            tasks.start_soon(killed, tmp_path / "program.py", seed)
    await nothing_is_left(containers)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(0, MANY, AT_ONCE))
async def test_clients_killed_at_any_command_leave_no_container(containers: Podman, first: int) -> None:
    """`make nightly` kills 200; ``OUTRIDER_SEED`` chooses other moments."""
    client = Client(
        provider="containers",
        options={"image": IMAGE, "runtime": "podman", "network": False, "volumes": [USR]},
        call="outrider.providers.shared.login_host:Here.run",
        request={"lease_s": LEASE_S},
    )
    dead = await kill_all(client, moments(MANY, calls=COMMANDS, seed=SEED)[first : first + AT_ONCE])
    took_s = await nothing_is_left(containers)
    print(f"from {first}: {dead} of {AT_ONCE} clients killed, nothing left {took_s:.1f} s after the last")
