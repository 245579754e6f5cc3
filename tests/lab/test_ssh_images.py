"""Images on real hosts: from bare Debian to the first result, and everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from bars import tasks
from netlab import Host, PackageIndex, write_wheel

from outrider import BootstrapError, Image, Pool, Secret, compute

pytestmark = pytest.mark.anyio
CANARY = "canary-7f3b9c1e"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "far-away", "1.0", {"far_away.py": "DISTANCE = 7\n"})
    write_wheel(folder, "far-away", "1.1", {"far_away.py": "DISTANCE = 8\n"})
    return folder


@pytest.fixture
def index(lab, wheels: Path) -> Iterator[PackageIndex]:
    with PackageIndex(lab.address, wheels) as index:
        yield index


@compute
def distance() -> tuple[int, str]:
    import far_away  # type: ignore[import-not-found]

    return far_away.DISTANCE, socket.gethostname()


@compute
def token() -> int:
    return len(os.environ["TOKEN"])


@compute
def shout() -> str:
    import my_module  # type: ignore[import-not-found]

    return str(my_module.WORD)


def processes(host: Host) -> list[list[str]]:
    return [line for line in host.processes().values() if "sshd" not in line[0]]


async def failing(provider: object, image: Image) -> BootstrapError:
    with pytest.raises(BootstrapError) as caught:
        async with asyncio.timeout(150), Pool(provider=provider, nodes=1, image=image, console="silent"):  # type: ignore[arg-type]
            pytest.fail("the pool opened")
    return caught.value


async def distances(provider: object, nodes: int, image: Image) -> list[tuple[int, str]]:
    async with Pool(provider=provider, nodes=nodes, image=image, console="silent") as pool:  # type: ignore[arg-type]
        return await pool.broadcast(distance())


async def test_bare_hosts_have_what_the_image_says_and_keep_it(bare_hosts, ssh, index):
    """Cold and warm. How soon is for ``python -m benchmarks.lab image`` to say."""
    image = Image(pip=["far-away==1.0"], pip_indexes=[index.url])
    made = bare_hosts(4)
    assert set(await distances(ssh(made), 4, image)) == {(7, host.name) for host in made}
    asked = len(index.requests)
    assert set(await distances(ssh(made), 4, image)) == {(7, host.name) for host in made}
    assert len(index.requests) == asked
    many = bare_hosts(8)
    assert set(await distances(ssh(many), 8, image)) == {(7, host.name) for host in many}


async def test_an_image_of_another_digest_is_another_environment(bare_hosts, ssh, index):
    made = bare_hosts(1)
    for version, says in (("1.0", 7), ("1.1", 8), ("1.0", 7)):
        image = Image(pip=[f"far-away=={version}"], pip_indexes=[index.url])
        results = await distances(ssh(made), 1, image)
        assert results == [(says, made[0].name)]


async def test_wheels_are_sent_to_hosts_without_a_way_out(bare_hosts, ssh, wheels):
    made = bare_hosts(2)
    results = await distances(ssh(made), 2, Image(pip=["far-away"], pip_indexes=[str(wheels)]))
    assert {number for number, _ in results} == {8}


async def test_a_changed_include_is_what_the_next_pool_sees(bare_hosts, ssh, tmp_path):
    made = bare_hosts(1)
    module = tmp_path / "my_module.py"
    for word in ("before", "after"):
        module.write_text(f"WORD = {word!r}\n")
        async with Pool(provider=ssh(made), nodes=1, image=Image(includes=[module]), console="silent") as pool:
            assert await pool.run(shout()) == word


async def test_a_package_that_does_not_exist_is_named(bare_hosts, ssh, index):
    made = bare_hosts(1)
    error = await failing(ssh(made), Image(pip=["no-such-thing"], pip_indexes=[index.url], offline=False))
    assert error.phase == "packages"
    assert "no-such-thing" in str(error)
    assert processes(made[0]) == []


async def test_an_index_that_hangs_ends_at_the_timeout(bare_hosts, ssh, index):
    made = bare_hosts(1)
    index.mood = "hangs"
    error = await failing(
        ssh(made), Image(pip=["far-away"], pip_indexes=[index.url], offline=False, bootstrap_timeout=15)
    )
    assert error.phase == "packages"
    assert "bootstrap_timeout" in str(error)
    await gone(made[0])


async def test_a_command_that_hangs_ends_at_the_timeout_with_what_it_started(bare_hosts, ssh):
    made = bare_hosts(1)
    error = await failing(ssh(made), Image(run=["echo waiting; sleep 1000 & sleep 1000"], bootstrap_timeout=10))
    assert error.phase == "run"
    assert "bootstrap_timeout" in str(error)
    assert "waiting" in error.log
    await gone(made[0])


async def test_a_command_that_fails_shows_its_last_words(bare_hosts, ssh):
    error = await failing(ssh(bare_hosts(1)), Image(run=["echo no luck today >&2; exit 7"]))
    assert (error.phase, error.exit_status) == ("run", 7)
    assert "no luck today" in error.log
    assert "exit 7" in (error.command or "")


async def test_a_host_on_which_a_command_fails_is_no_node_and_another_one_takes_its_place(hosts, ssh):
    """The check of a host that a user writes, as in `Image(run=["nvidia-smi"])`."""
    made = hosts(3)
    made[0].path("/root/ill").touch()
    image = Image(run=["test ! -e /root/ill"])
    async with asyncio.timeout(150):
        async with Pool(provider=ssh(made), nodes=2, image=image, console="silent") as pool:
            assert set(await pool.broadcast(tasks.where())) == {host.name for host in made[1:]}


async def test_apt_that_fails_is_told_of(bare_hosts, ssh):
    error = await failing(ssh(bare_hosts(1)), Image(apt=["no-such-package"]))
    assert error.phase == "apt"
    assert error.exit_status
    assert error.log


async def test_a_node_with_another_python_only_is_told_of(bare_hosts, ssh):
    error = await failing(ssh(bare_hosts(1)), Image(python="/usr/bin/python3.99"))
    assert "/usr/bin/python3.99" in str(error)


async def test_a_secret_is_nowhere_but_in_its_tasks_environment(bare_hosts, ssh, index, caplog):
    caplog.set_level(logging.DEBUG)
    made = bare_hosts(1)
    [host] = made
    secret_index = index.url.replace("http://", f"http://user:{CANARY}@")
    image = Image(
        env={"TOKEN": Secret(CANARY)},
        pip=["far-away"],
        pip_indexes=[Secret(secret_index)],
        offline=False,
        run=["echo it is $TOKEN"],
    )
    seen: list[str] = []
    async with Pool(provider=ssh(made), nodes=1, image=image, console="silent") as pool:

        async def collect() -> None:
            async for event in pool.events():
                seen.append(repr(event))  # noqa: PERF401 - as it comes

        task = asyncio.create_task(collect())
        assert await pool.run(token()) == len(CANARY)
        assert not [line for line in host.processes().values() if CANARY in " ".join(line)]
        assert on_disk(host) == []
    await task
    assert on_disk(host) == []
    assert not [line for line in seen if CANARY in line]
    assert CANARY not in caplog.text
    failed = await failing(ssh(made), Image(env={"TOKEN": Secret(CANARY)}, run=["echo $TOKEN; exit 1"]))
    assert CANARY not in str(failed) + repr(failed.log) + repr(failed.command)
    assert CANARY not in caplog.text
    assert on_disk(host) == []


def on_disk(host: Host) -> list[str]:
    """The files of a host that contain the canary."""
    places = ["/root", "/home", "/tmp", "/run", "/dev/shm", "/var", "/etc", "/opt", "/usr/local"]
    found = host.run("grep", "--recursive", "--files-with-matches", "--binary-files=text", CANARY, *places, check=False)
    return found.stdout.split()


async def gone(host: Host) -> None:
    async with asyncio.timeout(60):
        while processes(host):
            await asyncio.sleep(0.01)
