"""Pools on hosts that one has: what works on this computer works there, and nothing but the cache is left."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from netlab import PLAIN_USER, Host, Sshd

from outrider import Image, Pool, Worker, compute, instance_info

pytestmark = pytest.mark.anyio


@compute
def hostname(pause_s: float = 0.0) -> str:
    import time

    time.sleep(pause_s)
    return socket.gethostname()


@compute
def world() -> tuple[int, int, str, str]:
    info = instance_info()
    return info.rank, info.world_size, info.head_addr, socket.gethostname()


@compute
def digest(data: bytes) -> tuple[str, bytes]:
    return hashlib.sha256(data).hexdigest(), data[::-1]


@compute
def squares(n: int) -> Iterator[int]:
    for number in range(n):
        yield number * number


@compute
def home() -> tuple[int, str, str]:
    return os.getuid(), str(Path.home()), sys.executable


@compute
def leaves_a_child() -> int:
    import subprocess

    return subprocess.Popen(["sleep", "1000"]).pid


async def left(host: Host, home: str = "/root") -> tuple[list[list[str]], list[str]]:
    """What runs on a host beside sshd, and which files are there that were not when it booted.

    A pool has ended when its executors have said goodbye; their processes are gone a moment later.
    """
    end = time.monotonic() + 60
    while (running := [line for line in host.processes().values() if "sshd" not in line[0]]) and time.monotonic() < end:
        await asyncio.sleep(0.01)
    places = [home, "/tmp", "/var/tmp", "/run", "/dev/shm"]
    found = host.run("find", *places, "-xdev", "-newer", "/etc/hostname", "(", "-type", "f", "-o", "-type", "s", ")")
    return running, [path for path in found.stdout.split("\n") if path and "/.ssh/" not in path]


async def test_four_hosts_run_what_one_computer_runs(hosts, ssh):
    made = hosts(4)
    async with Pool(provider=ssh(made), nodes=4, console="silent") as pool:
        assert await pool.run(hostname()) in {host.name for host in made}
        worlds = await pool.broadcast(world())
        assert [(rank, size) for rank, size, _, _ in worlds] == [(rank, 4) for rank in range(4)]
        assert {name for _, _, _, name in worlds} == {host.name for host in made}
        assert len({head for _, _, head, _ in worlds} & {host.address for host in made}) == 1
        names = [name async for name in pool.map(hostname, [0.01] * 40)]
        assert len(names) == 40
        assert set(names) == {host.name for host in made}
        assert [item async for item in pool.stream(squares(5))] == [0, 1, 4, 9, 16]


async def test_large_data_goes_there_and_back(hosts, ssh):
    data = os.urandom(30_000_000)
    async with Pool(provider=ssh(hosts(2)), nodes=2, console="silent") as pool:
        for name, back in await pool.broadcast(digest(data)):
            assert name == hashlib.sha256(data).hexdigest()
            assert back == data[::-1]


def sshd_cpu_s(host: Host) -> float:
    """The processor time of the host's sshd and of its sessions."""
    pids = [pid for pid, argv in host.processes().items() if "sshd" in argv[0]]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in stats) / os.sysconf("SC_CLK_TCK")


@compute
def noise(size_bytes: int) -> bytes:
    return os.urandom(size_bytes)


@pytest.mark.nightly
async def test_a_value_that_comes_slowly_costs_the_hosts_sshd_little(hosts, ssh):
    """It holds what its client's window allows, in a buffer that it copies whenever that grows by 32 KiB."""
    [host] = hosts(1)
    async with Pool(provider=ssh([host]), nodes=1, console="silent") as pool:
        await pool.run(noise(1))
        host.limit_bandwidth(up_mbit=60, down_mbit=60)
        before_s = sshd_cpu_s(host)
        assert len(await pool.run(noise(20 << 20))) == 20 << 20
        assert sshd_cpu_s(host) - before_s < 0.35


async def test_nothing_but_the_cache_is_left(hosts, ssh):
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, worker=Worker(concurrency=2), console="silent") as pool:
        await pool.broadcast(leaves_a_child())
        assert await pool.run(digest(os.urandom(3_000_000)))
    for host in made:
        running, files = await left(host)
        assert running == []
        assert files
        assert [path for path in files if not path.startswith("/root/.cache/outrider/")] == []
        assert host.run("ls", "/root/.cache/outrider/pools").stdout == ""


async def test_the_second_pool_finds_the_cache_of_the_first(hosts, ssh):
    made = hosts(1)
    async with Pool(provider=ssh(made), nodes=1, console="silent") as pool:
        await pool.run(hostname())
    _, before = await left(made[0])
    async with Pool(provider=ssh(made), nodes=1, console="silent") as pool:
        await pool.run(hostname())
    _, after = await left(made[0])
    assert {path for path in after if "__pycache__" not in path} == {
        path for path in before if "__pycache__" not in path
    }


async def test_a_plain_user_needs_no_more_than_a_login(hosts, ssh):
    made = hosts(1)
    async with Pool(provider=ssh(made, user=PLAIN_USER), nodes=1, console="silent") as pool:
        uid, path, _ = await pool.run(home())
        assert (uid != 0, path) == (True, f"/home/{PLAIN_USER}")
    running, files = await left(made[0], f"/home/{PLAIN_USER}")
    assert running == []
    assert [path for path in files if not path.startswith(f"/home/{PLAIN_USER}/.cache/outrider/")] == []


async def test_an_interpreter_can_be_named(hosts, ssh):
    async with Pool(provider=ssh(hosts(1)), nodes=1, image=Image(python=sys.executable), console="silent") as pool:
        assert (await pool.run(home()))[2] == sys.executable


async def test_bare_hosts_need_python_alone(bare_hosts, ssh):
    made = bare_hosts(4)
    async with Pool(provider=ssh(made), nodes=4, console="silent") as pool:
        assert set(await pool.broadcast(hostname())) == {host.name for host in made}
    assert [(await left(host))[0] for host in made] == [[]] * 4


async def test_sockets_that_may_not_be_forwarded_are_bridged(hosts, ssh):
    made = hosts(2, sshd=Sshd(stream_local_forwarding=False))
    data = os.urandom(5_000_000)
    async with Pool(provider=ssh(made), nodes=2, console="silent") as pool:
        assert len(set(await pool.broadcast(hostname()))) == 2
        assert [back for _, back in await pool.broadcast(digest(data))] == [data[::-1]] * 2
    assert [(await left(host))[0] for host in made] == [[]] * 2


async def test_hosts_behind_a_jump_host(lab, ssh):
    inner = lab.add_network()
    jump = lab.create("jump", networks=[lab.network, inner])
    hidden = [lab.create(f"hidden{number}", networks=[inner]) for number in range(2)]
    async with Pool(provider=ssh(hidden, jump=f"root@{jump.address}"), nodes=2, console="silent") as pool:
        assert set(await pool.broadcast(hostname())) == {"hidden0", "hidden1"}
    assert [(await left(host))[0] for host in (jump, *hidden)] == [[]] * 3


async def test_a_port_of_its_own(hosts, ssh):
    async with Pool(provider=ssh(hosts(1, sshd=Sshd(port=2222))), nodes=1, console="silent") as pool:
        assert await pool.run(hostname()) == "h0"


async def test_streams_go_both_ways(hosts, ssh):
    @compute
    def doubled(items: Iterator[int]) -> Iterator[int]:
        for item in items:
            yield 2 * item

    async def numbers() -> AsyncIterator[int]:
        for number in range(50):
            yield number

    async with Pool(provider=ssh(hosts(1)), nodes=1, console="silent") as pool:
        assert [item async for item in pool.stream(doubled(numbers()))] == [2 * number for number in range(50)]  # type: ignore[arg-type]
