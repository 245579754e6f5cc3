"""A host's own lease is renewed from the first contact with it until its client dies, and by nobody after that."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from netlab import PLAIN_USER, Host

pytestmark = pytest.mark.anyio

LEASE = "/run/outrider/lease"
LEASE_S = 8.0
INSTALLING, GO_ON = f"/home/{PLAIN_USER}/installing", f"/home/{PLAIN_USER}/go-on"
CLIENT = f"""\
import asyncio, sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from outrider import SSH, Image, Pool


@dataclass(frozen=True)
class Leased:
    ssh: SSH
    name = "leased"
    local = False

    @asynccontextmanager
    async def open(self, pool, entry_points):
        async with self.ssh.open(pool, entry_points) as fleet:
            launch = fleet.launch

            async def launched(request, count):
                return [replace(machine, lease={LEASE!r}) for machine in await launch(request, count)]

            Fleet = type("Fleet", (), {{"__getattr__": lambda _, name: getattr(fleet, name)}})
            fleet_ = Fleet()
            fleet_.launch = launched
            yield fleet_


async def main(host, key, known_hosts):
    image = Image(run=["touch {INSTALLING}; while [ ! -e {GO_ON} ]; do sleep 0.05; done"])
    provider = Leased(SSH([host], key=key, known_hosts=known_hosts, user={PLAIN_USER!r}))
    async with Pool(provider=provider, nodes=1, image=image, lease={LEASE_S}, console="silent"):
        print("ready", flush=True)
        await asyncio.sleep(1000)


asyncio.run(main(*sys.argv[1:]))
"""


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


async def is_renewed(lease: Path) -> None:
    os.utime(lease, (0, 0))
    await until(lambda: lease.stat().st_mtime != 0)


def executors(host: Host) -> list[list[str]]:
    return [line for line in host.processes().values() if "daemon" in line]


async def test_a_lease_is_renewed_from_the_first_contact_until_the_client_dies(lab, hosts, tmp_path):
    """By a user who does not own the file: first the client, then the executor."""
    [host] = hosts(1)
    host.run("sh", "-c", f"mkdir -p {Path(LEASE).parent} && touch {LEASE} && chmod 0666 {LEASE}")
    lease = host.path(LEASE)
    script, known_hosts = tmp_path / "client.py", tmp_path / "known_hosts"
    script.write_text(CLIENT)
    known_hosts.write_text(lab.known_hosts)
    with subprocess.Popen(
        [sys.executable, script, f"{host.address}:{host.port}", lab.key, known_hosts], stdout=subprocess.PIPE
    ) as client:
        try:
            assert client.stdout is not None
            await until(host.path(INSTALLING).exists)
            for _ in range(2):
                await is_renewed(lease)
            assert executors(host) == []
            host.path(GO_ON).touch()
            assert await asyncio.to_thread(client.stdout.readline) == b"ready\n"
            for _ in range(2):
                await is_renewed(lease)
            assert executors(host)
        finally:
            client.kill()
    await until(
        lambda: not any("sshd" in line[0] and PLAIN_USER in " ".join(line) for line in host.processes().values())
    )
    os.utime(lease, (0, 0))
    await until(lambda: not executors(host))  # which ends with its own lease
    assert lease.stat().st_mtime == 0
