"""Pools in containers of Podman, without a network: what tasks see, and what is left when something dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from outrider import Containers, Image, Local, Nodes, Pool, compute, instance_info
from outrider.errors import SpecError, TaskKilled
from outrider.providers.shared.journal import Journal

from .podman import IMAGE, USR, Podman

pytestmark = pytest.mark.anyio


def bare(**options: object) -> Containers:
    given: dict[str, object] = {"runtime": "podman", "network": False, "volumes": [USR], **options}
    return Containers(IMAGE, **given)  # type: ignore[arg-type]  # as a caller may write them


@compute
def seen() -> tuple[int, str, list[str]]:
    return instance_info().node, os.uname().nodename, sorted(each.name for each in Path("/sys/class/net").iterdir())


@compute
def length(data: bytes) -> int:
    return len(data)


@compute
def hold(megabytes: int) -> int:
    return len(bytearray(os.urandom(1)) * (megabytes << 20))


async def test_tasks_run_in_containers_without_a_network(containers: Podman) -> None:
    async with Pool(provider=bare(), nodes=2, console="silent") as pool:
        found = await pool.broadcast(seen())
        assert [node for node, _, _ in found] == [0, 1]
        assert len({name for _, name, _ in found} | {os.uname().nodename}) == 3
        assert all(networks == ["lo"] for _, _, networks in found)
        assert await pool.run(length(bytes(9_000_000))) == 9_000_000
        assert len(containers.names) == 2


@pytest.mark.oom
async def test_a_task_beyond_the_memory_limit_is_told_as_that(
    containers: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman leaves no file for it where the program runs, and volumes may be beside the program."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    (tmp_path / "data").mkdir()
    async with Pool(provider=bare(volumes=[USR, "../data:/data"]), memory_gb=0.25, console="silent") as pool:
        with pytest.raises(TaskKilled, match="ran out of memory"):
            await pool.run(hold(400))
        assert await pool.run(length(b"abc")) == 3
    assert list(here.iterdir()) == []


async def test_a_container_that_is_killed_is_replaced(containers: Podman) -> None:
    async with Pool(provider=bare(), nodes=Nodes(1), console="silent") as pool:
        ((_, first, _),) = await pool.broadcast(seen())
        containers("kill", "--signal=KILL", *containers.names)
        assert (await pool.run(seen()))[1] != first


async def test_an_image_that_is_not_there_fails_with_the_words_of_podman(containers: Podman) -> None:
    with pytest.raises(SpecError, match="has no image localhost/outrider-nowhere:1"):
        async with Pool(provider=Containers("localhost/outrider-nowhere:1", runtime="podman", pull="never")):
            pass


async def test_the_image_of_a_pool_goes_before_that_of_its_provider(containers: Podman) -> None:
    provider = Containers("localhost/outrider-nowhere:1", runtime="podman", network=False, volumes=[USR])
    async with Pool(provider=provider, image=Image(container=IMAGE), console="silent") as pool:
        assert (await pool.run(seen()))[2] == ["lo"]


def test_an_image_of_containers_is_refused_where_machines_are_none() -> None:
    with pytest.raises(SpecError, match="machines of local are no containers"):
        Pool(provider=Local(), image=Image(container=IMAGE))


PROGRAM = """
import sys, time
from outrider import Containers, Pool
provider = Containers(sys.argv[1], runtime="podman", network=False, volumes=[sys.argv[2]])
with Pool(provider=provider, lease=2.0, console="silent", name="killed") as pool:
    print("ready", flush=True)
    time.sleep(60)
"""


async def test_a_container_whose_client_was_killed_ends_by_its_lease(containers: Podman, tmp_path: Path) -> None:
    """By itself: nothing but the container's first process is left to end it."""
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), IMAGE, USR]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    while containers.names:
        assert time.monotonic() < killed_at + 90.0
        await anyio.sleep(0.1)


LEFT = """
import sys
from outrider import Containers, Pool, compute
@compute
def forever():
    import time
    time.sleep(987654)
provider = Containers(sys.argv[1], runtime="podman", network=False, volumes=[sys.argv[2]])
with Pool(provider=provider, nodes=2, console="silent", name="left") as pool:
    running = pool.submit(forever())
    print("ready", flush=True)
    sys.stdin.readline()
"""


@compute
def executors() -> set[str]:
    """The folders of those that run in the container: one is several processes with one command line."""
    said = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            said.append(each.read_bytes().split(b"\0"))
    return {words[words.index(b"--directory") + 1].decode() for words in said if b"--directory" in words}


async def test_a_killed_clients_containers_are_the_next_ones(containers: Podman, tmp_path: Path) -> None:
    """Two are adopted by a pool of three: it starts the third. What ran in them is ended."""
    (tmp_path / "program.py").write_text(LEFT)
    command = [sys.executable, str(tmp_path / "program.py"), IMAGE, USR]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"ready\n"
        with pytest.raises(SpecError, match=f"living owner: process {program.pid} "):
            async with Pool.attach("left", provider=bare()):
                pytest.fail("attached")
        program.send_signal(signal.SIGKILL)
    left = {*containers.names}
    async with Pool.attach("left", provider=bare(), nodes=3, console="silent") as pool:
        assert [len(each) for each in await pool.broadcast(executors())] == [1, 1, 1]
        assert len(left) == 2
        assert left < {*containers.names}
    assert Journal.open().records() == []
