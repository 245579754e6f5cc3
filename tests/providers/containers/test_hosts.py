"""Containers on hosts that are reached by SSH: what pools see, and how those of a killed client are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from outrider import Containers, Pool, compute

from .podman import IMAGE, USR, Podman
from .ssh_host import Host, has_sshd, ssh_host

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(not has_sshd(), reason="no sshd for root")]


@pytest.fixture
def host(containers: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """The way to Podman is over that host alone."""
    for name in containers.env:
        monkeypatch.delenv(name)
    (tmp_path / "host").mkdir()
    with ssh_host(tmp_path / "host", containers) as found:
        yield found


def over(host: Host, *others: str) -> Containers:
    hosts = [*others, host.name]
    key, known = host.login.values()
    return Containers(
        IMAGE, hosts=hosts, runtime="podman", network=False, volumes=[USR], config=False, key=key, known_hosts=known
    )


@compute
def networks() -> list[str]:
    return sorted(each.name for each in Path("/sys/class/net").iterdir())


@compute
def length(data: bytes) -> int:
    return len(data)


async def test_a_pool_goes_on_when_its_connections_to_the_host_are_cut(containers: Podman, host: Host) -> None:
    async with Pool(provider=over(host, "root@127.0.0.1:1"), nodes=1, console="silent") as pool:
        assert await pool.broadcast(networks()) == [["lo"]]  # on the host that answers
        assert await pool.run(length(bytes(3_000_000))) == 3_000_000
        first = containers.names
        host.cut()
        assert await pool.run(length(bytes(2_000_000))) == 2_000_000
        assert containers.names == first


PROGRAM = """
import sys, time
from outrider import Containers, Pool
hosts, image, usr, key, known = sys.argv[1:]
provider = Containers(
    image, hosts=[hosts], runtime="podman", network=False, volumes=[usr], config=False, key=key, known_hosts=known
)
with Pool(provider=provider, console="silent", name="killed") as pool:
    print("ready", flush=True)
    time.sleep(60)
"""


async def test_commands_run_in_a_container_of_a_host(
    containers: Podman, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    async with Pool(provider=over(host), name="there", console="silent", run="there") as pool:
        assert len(await pool.broadcast(networks())) == 1
        command = [sys.executable, "-m", "outrider", "exec", "there", "--", "hostname"]
        with anyio.fail_after(120):  # the record, by which nodes are found, is written by a thread
            while not (done := await anyio.run_process(command, check=False)).stdout:
                await anyio.sleep(0.1)
        assert done.stdout.decode().removeprefix("[node 0] ").strip() in containers("ps", "--no-trunc", "--quiet")


@pytest.fixture
def left(containers: Podman, host: Host, tmp_path: Path) -> list[str]:
    """The container on the host that a killed client has left."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), host.name, IMAGE, USR, *host.login.values()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGKILL)
    assert len(containers.names) == 1
    return containers.names


async def test_what_a_killed_client_has_left_is_shown_and_ended(containers: Podman, left: list[str]) -> None:
    assert "owner is dead" in outrider("ps")
    outrider("gc", "--apply")
    assert containers.names == []
    assert "owner is dead" not in outrider("ps")


async def test_another_client_goes_on_with_them(containers: Podman, host: Host, left: list[str]) -> None:
    async with Pool.attach("killed", provider=over(host), nodes=1, console="silent") as pool:
        assert await pool.broadcast(networks()) == [["lo"]]
        assert containers.names == left


def outrider(*argv: str) -> str:
    command = [sys.executable, "-m", "outrider", *argv]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout
