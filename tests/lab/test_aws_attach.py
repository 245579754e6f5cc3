"""A pool whose client was killed is taken over by another one: its machines, and nothing that ran on them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from bars.site import until

from outrider import Pool, SpecError, compute
from outrider.providers.shared.journal import Journal

pytestmark = pytest.mark.anyio
CLIENT = """
import asyncio, sys
from outrider import AWS, Pool, compute

@compute
def forever():
    import time
    time.sleep(987654)

async def main():
    async with Pool(name="train", provider=AWS(address="private"), nodes=int(sys.argv[1]), console="silent") as pool:
        running = pool.submit(forever())
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@compute
def whoami() -> tuple[str, list[str]]:
    """The host's name, and the command lines of all processes there."""
    import socket

    said = [each.read_bytes() for each in Path("/proc").glob("[0-9]*/cmdline") if each.exists()]
    return socket.gethostname(), [line.replace(b"\0", b" ").decode(errors="replace") for line in said]


@asynccontextmanager
async def client(nodes: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """One that has its pool, and a task that runs there for days."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, str(nodes), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 150) == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def executors(lines: list[str]) -> set[str]:
    """Their directories: an executor is several processes with one command line."""
    return {found[1] for line in lines if (found := re.search(r" daemon --directory (\S+)", line))}


@pytest.mark.usefixtures("unhurried")
async def test_a_killed_clients_machines_are_the_next_ones(cloud, hypervisor, aws):
    async with client(2) as process:
        before = {instance.id for instance in cloud.instances("running")}
        with pytest.raises(SpecError, match=f"living owner: process {process.pid} "):
            async with Pool.attach("train", provider=aws(), nodes=2, console="silent"):
                pytest.fail("attached")
    async with Pool.attach("train", provider=aws(), console="silent") as pool:
        assert pool.snapshot().desired == 2
        results = await pool.broadcast(whoami())
        assert {instance.id for instance in cloud.instances()} == before
        assert {name for name, _ in results} == {host.name for host in hypervisor.hosts.values()}
        for _, lines in results:
            assert len(executors(lines)) == 1, "the old client's executor and its task are gone"
        assert pool.snapshot().pool == "train"
    assert cloud.left() == []
    assert hypervisor.hosts == {}
    assert Journal.open().records() == []


@pytest.mark.usefixtures("unhurried")
async def test_what_is_missing_is_launched_and_what_is_too_much_is_ended(cloud, hypervisor, aws):
    async with client(2):
        before = {instance.id for instance in cloud.instances("running")}
    async with Pool.attach("train", provider=aws(), nodes=3, console="silent") as pool:
        assert len({name for name, _ in await pool.broadcast(whoami())}) == 3
        assert before < {instance.id for instance in cloud.instances("running")}
    assert cloud.left() == []
    async with client(2):
        pass
    async with Pool.attach("train", provider=aws(), nodes=1, console="silent") as pool:
        await pool.broadcast(whoami())
        await until(lambda: len(cloud.instances("running")) == 1, 60)
    assert cloud.left() == []


async def test_the_keys_go_with_the_pool(cloud, hypervisor, aws, tmp_path):
    async with client(1):
        (directory,) = Journal.open().pools.glob("train-*")
        assert "PRIVATE KEY" in (directory / "client_key.key").read_text()
        written = json.loads((directory / "takeover.key").read_text())
        (host,) = hypervisor.hosts.values()
        now = host.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1]
        assert [key.split()[1] for key in written["machines"][0]["host_keys"]] == [now]
    async with Pool.attach("train", provider=aws(), nodes=1, console="silent"):
        pass
    assert not directory.exists()


async def test_there_must_be_something_to_attach_to(cloud, aws):
    with pytest.raises(SpecError, match="There is no pool 'train' to attach to"):
        async with Pool.attach("train", provider=aws(), console="silent"):
            pytest.fail("attached")
    assert cloud.left() == []
