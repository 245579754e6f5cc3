"""The nodes of a Slurm cluster, beside a plain login by SSH to one of them, and many of them beside few."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from cluster import Cluster, Site
from netlab import PLAIN_USER, Lab

from outrider import SSH, Pool, Slurm, compute

VALUE_BYTES = 50_000_000
CALLS, TURNS = 60, 10  # of a pool before the next one's turn; turns of each
CALL_BY_SSH, CALL_BY_SRUN = 1.3, 3.0  # times as long as a plain login's
LARGE = 1.25  # times as long: 0.8 of the speed
FEW, MANY, MORE = 4, 32, 2.0
NODE_CORES, LOGIN_CORES = 0.04, 0.5  # so that 33 machines fit into two cores
STEP = "--quiet --nodes=1 --ntasks=1 --overlap --mem=0 --cpu-bind=none --unbuffered"


@compute
def nothing() -> None:
    pass


@compute
def value(size_bytes: int) -> bytes:
    """The same bytes each time: making them would count."""
    kept: dict[str, Any] = vars(sys)  # a module of the worker's outlives the task
    if "a_value" not in kept:
        kept["a_value"] = os.urandom(size_bytes)
    return bytes(kept["a_value"])


@compute
def length(of: bytes) -> int:
    return len(of)


async def beside_ssh(lab: Lab, rounds: int) -> dict[str, list[float]]:
    """What a call and a large value take by `Slurm`, over what they take by `SSH` on the same node. What a value takes
    by srun, over `srun -u cat` of as much through a plain ssh to the login host. All pools are open at once.
    """
    made = Cluster(lab, Site(nodes=1, memory_mb=4000))
    known = _known_hosts(lab, made)
    login = f"{PLAIN_USER}@{made.login.address}"
    how: dict[str, Any] = {"key": lab.key, "known_hosts": known, "config": False}
    providers: dict[str, Slurm | SSH] = {
        "ssh": Slurm(login, reach="ssh", **how),
        "srun": Slurm(login, reach="srun", **how),
        "SSH": SSH([made.nodes[0].address], user=PLAIN_USER, jump=login, **how),  # let in as the others have jobs there
    }
    seen: dict[str, list[float]] = {}
    async with AsyncExitStack() as stack:
        pools = {
            name: await stack.enter_async_context(Pool(provider=each, nodes=1, console="silent"))
            for name, each in providers.items()
        }
        calls = await _calls(pools)
        for name in ("ssh", "srun"):
            seen[f"call by {name}, to SSH"] = [calls[name] / calls["SSH"]]
        made.run("sh", "-c", f"head -c {VALUE_BYTES} /dev/urandom >value")
        job = made.run("squeue", "--noheader", "--format=%A").stdout.split()[0]
        step = f"srun --jobid={job} {STEP}"
        ssh = ["ssh", "-i", str(lab.key), "-o", f"UserKnownHostsFile={known}", login]

        def cat() -> None:
            command = f"cd; {step} cat value"
            subprocess.run([*ssh, command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)

        for number in range(rounds + 1):  # the first is not counted
            took = {"cat": _timed(cat)}
            for name, pool in pools.items():
                data = os.urandom(VALUE_BYTES)  # a node remembers those that it has
                for way, call in (("from", value(VALUE_BYTES)), ("to", length(data))):
                    began = time.monotonic()
                    await pool.run(call)
                    took[f"{name} {way}"] = time.monotonic() - began
            if number:
                for way in ("from", "to"):
                    seen.setdefault(f"50 MB {way} a node by ssh, to SSH", []).append(
                        took[f"ssh {way}"] / took[f"SSH {way}"]
                    )
                seen.setdefault("50 MB from a node by srun, to cat", []).append(took["srun from"] / took["cat"])
    return seen


async def _calls(pools: dict[str, Pool]) -> dict[str, float]:
    took: dict[str, list[float]] = {name: [] for name in pools}
    for turn in range(TURNS + 1):
        for name, pool in pools.items():
            for _ in range(CALLS):
                began = time.perf_counter()
                await pool.run(nothing())
                if turn:
                    took[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in took.items()}


def _timed(action: Callable[[], None]) -> float:
    began = time.monotonic()
    action()
    return time.monotonic() - began


async def few_and_many(lab: Lab) -> dict[int, float]:
    """How long a pool of so many nodes takes to be ready, where each machine has its own share of a core."""
    made = Cluster(lab, Site(nodes=MANY, memory_mb=1000))
    for node in made.nodes:
        node.limit_cores(NODE_CORES)
    made.login.limit_cores(LOGIN_CORES)
    how: dict[str, Any] = {"key": lab.key, "known_hosts": _known_hosts(lab, made), "config": False}
    took: dict[int, float] = {}
    for count in (FEW, FEW, MANY):  # the first one fills the cache
        began = time.monotonic()
        provider = Slurm(f"{PLAIN_USER}@{made.login.address}", reach="srun", **how)
        async with Pool(provider=provider, nodes=count, console="silent") as pool:
            await pool.broadcast(nothing())
            took[count] = time.monotonic() - began
    return took


def _known_hosts(lab: Lab, made: Cluster) -> Path:
    file = lab.key.with_name("known_hosts")
    nodes = (f"{node.address} {' '.join(node.host_key.split()[:2])}\n" for node in made.nodes)
    file.write_text(made.login.known_hosts + "".join(nodes))
    return file
