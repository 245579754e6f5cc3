"""Hosts that cannot be had: each is a typed error that names the next step, in bounded time, or is passed over."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

import pytest
from netlab import Host, Sshd

from outrider import AuthError, BootstrapError, CapacityError, HostKeyError, Image, Nodes, OutriderError, Pool, compute
from outrider import Host as Given

pytestmark = pytest.mark.anyio
BOUNDED_S = 120.0


@compute
def where() -> str:
    return socket.gethostname()


async def refused(
    provider: object,
    nodes: int = 1,
    image: Image = Image(),  # noqa: B008 - immutable
    **options: object,
) -> OutriderError:
    """The error with which the pool does not open."""
    with pytest.raises(OutriderError) as caught:
        async with (
            asyncio.timeout(BOUNDED_S),
            Pool(provider=provider, nodes=nodes, image=image, console="silent", **options),  # type: ignore[arg-type]
        ):
            pytest.fail("the pool opened")
    return caught.value


def clean(hosts: Sequence[Host]) -> bool:
    return not any(line for host in hosts for line in host.processes().values() if "sshd" not in line[0])


async def test_a_changed_host_key_is_refused(hosts, ssh, tmp_path):
    one, other = hosts(2)
    (known := tmp_path / "known").write_text(f"{one.address} {other.host_key}\n")
    error = await refused(ssh([one], known_hosts=known))
    assert isinstance(error, HostKeyError)
    assert "shows another host key" in str(error)
    assert f"ssh-keygen -R '{one.address}'" in str(error)
    assert clean([one])


async def test_a_call_whose_only_host_comes_back_with_another_key_is_raised_from_the_refusal(hosts, ssh):
    host, other = hosts(2)
    async with Pool(provider=ssh([host]), nodes=1, replace_timeout=20, console="silent") as pool:
        assert await pool.run(where()) == host.name
        key = "/etc/ssh/ssh_host_ed25519_key"
        host.path(key).write_text(other.path(key).read_text())
        host.stop_sshd(sessions=True)
        host.start_sshd()
        async with asyncio.timeout(BOUNDED_S):
            with pytest.raises(CapacityError, match="shows another host key") as caught:
                while True:  # it may be run where the connection has not ended yet, or its lost node be the last
                    await pool.run(where())
        assert isinstance(caught.value.__cause__, HostKeyError)


async def test_an_unknown_host_key_is_refused(hosts, ssh, tmp_path):
    [host] = hosts(1)
    (known := tmp_path / "known").write_text("")
    error = await refused(ssh([host], known_hosts=known))
    assert isinstance(error, HostKeyError)
    assert f"ssh {host.address}" in str(error)


async def test_a_host_key_can_be_given(lab, hosts, ssh):
    from outrider import SSH

    one, other = hosts(2)
    right = SSH([Given(one.address, user="root", key=lab.key, host_key=one.host_key)])
    async with Pool(provider=right, nodes=1, console="silent") as pool:
        assert await pool.run(where()) == one.name
    wrong = SSH([Given(one.address, user="root", key=lab.key, host_key=other.host_key)])
    assert isinstance(await refused(wrong), HostKeyError)


async def test_one_changed_key_does_not_stop_the_others(hosts, ssh, tmp_path):
    """The pool has what it needs without that host."""
    made = hosts(3)
    lines = [made[0].known_hosts.split()[0] + " " + made[1].host_key, made[1].known_hosts, made[2].known_hosts]
    (known := tmp_path / "known").write_text("\n".join(lines))
    async with Pool(provider=ssh(made, known_hosts=known), nodes=2, console="silent") as pool:
        assert set(await pool.broadcast(where())) == {"h1", "h2"}


async def test_a_server_that_takes_passwords_only_is_told_of(lab, ssh):
    host = lab.create(sshd=Sshd(public_key=False, password=True))
    error = await refused(ssh([host]))
    assert isinstance(error, AuthError)
    assert "does not take keys, only password" in str(error)
    assert "PubkeyAuthentication" in str(error)


async def test_a_key_that_is_not_authorized_is_told_of(lab, ssh):
    host = lab.create(authorized=[])
    error = await refused(ssh([host]))
    assert isinstance(error, AuthError)
    assert "ssh-copy-id" in str(error)
    assert str(lab.key) in str(error)


DOWN: dict[str, Callable[[Host], object]] = {
    "its port is closed": Host.stop_sshd,
    "it has no power, in a LAN": Host.power_off,
    "it has no power, in a cloud": lambda host: host.power_off(silent=True),
}


async def test_hosts_that_are_down_are_no_pool(hosts, ssh):
    async def down(fault: Callable[[Host], object]) -> None:
        made = hosts(2)
        provider = ssh(made, connect_timeout=2)
        for host in made:
            fault(host)
        error = await refused(provider)
        assert made[0].address in str(error) or made[1].address in str(error)

    await asyncio.gather(*(down(fault) for fault in DOWN.values()))


async def test_a_host_that_is_down_is_passed_over_where_the_least_allows_it(hosts, ssh):
    async def passed_over(fault: Callable[[Host], object]) -> None:
        made = hosts(4)
        provider = ssh(made, connect_timeout=15)  # a busy computer takes a while to let one in
        fault(made[1])
        async with Pool(provider=provider, nodes=Nodes(min=3, desired=4), console="silent") as pool:
            assert set(await pool.broadcast(where())) == {host.name for host in made if host is not made[1]}

    async with asyncio.timeout(BOUNDED_S):
        await asyncio.gather(*(passed_over(fault) for fault in DOWN.values()))


async def test_hosts_that_are_not_ready_in_time_are_told_with_what_each_was_at(hosts, ssh):
    made = hosts(3)
    made[2].stop_sshd()
    image = Image(run=["echo step 3 of 5; sleep 600"])
    error = await refused(ssh(made, connect_timeout=600), nodes=3, image=image, boot_timeout=40)
    assert isinstance(error, BootstrapError)
    assert error.phase == "run"
    assert "not ready within 40 s: it answered, and run had taken" in str(error)
    assert "at last: step 3 of 5" in str(error)
    assert "Pool(boot_timeout=...)" in str(error)
    summary = "Of 3 nodes, after their boot_timeout of 40 s, 2 were at the step 'run', 1 was waiting for an answer."
    assert error.__notes__[-1] == summary
    assert any("refuses the connection" in note for note in error.__notes__)


async def test_a_host_that_comes_up_late_joins(hosts, ssh):
    made = hosts(2)
    made[1].stop_sshd()
    async with Pool(provider=ssh(made, connect_timeout=15), nodes=Nodes(min=1, desired=2), console="silent") as pool:
        assert await pool.run(where()) == "h0"
        made[1].start_sshd()
        async with asyncio.timeout(BOUNDED_S):
            while len([node for node in pool.snapshot().nodes if node.state == "ready"]) < 2:
                await asyncio.sleep(0.05)
        assert set(await pool.broadcast(where())) == {"h0", "h1"}


async def test_a_spare_stands_in_for_a_host_that_is_down(hosts, ssh):
    made = hosts(3)
    made[0].stop_sshd()
    async with (
        asyncio.timeout(BOUNDED_S),
        Pool(provider=ssh(made, connect_timeout=15), nodes=2, console="silent") as pool,
    ):
        assert set(await pool.broadcast(where())) == {"h1", "h2"}


async def test_more_nodes_than_hosts_is_said_at_once(hosts, ssh):
    error = await refused(ssh(hosts(1)), nodes=2)
    assert "SSH(hosts=...) has 1" in str(error)


async def test_a_host_without_python_is_told_of(lab, bare_hosts, ssh, debian_root):
    names = sorted(path.name for path in (debian_root / "usr/bin").glob("python3*"))
    host = lab.create(lower=debian_root, hidden=[f"/usr/bin/{name}" for name in names])
    error = await refused(ssh([host]))
    assert isinstance(error, BootstrapError)
    assert "ython" in str(error)
    assert error.machine is not None
    assert host.address in error.machine
    assert clean([host])


async def test_a_full_disk_is_told_of(lab, ssh):
    host = lab.create(disk_bytes=1 << 20)
    host.run("sh", "-c", "head -c 900000 /dev/zero >/var/filler", check=False)
    error = await refused(ssh([host]))
    assert isinstance(error, BootstrapError)
    assert "space" in str(error) or "disk" in str(error) or any("space" in line for line in error.log)
    assert clean([host])


async def test_a_home_that_cannot_be_written_to_is_told_of(hosts, ssh):
    [host] = hosts(1)
    host.run("sh", "-c", "mkdir -p /root/.cache && mount -t tmpfs -o ro tmpfs /root/.cache")
    error = await refused(ssh([host]))
    assert isinstance(error, BootstrapError)
    assert ".cache" in str(error)


async def test_a_host_that_dies_while_it_is_prepared_is_replaced(hosts, ssh):
    made = hosts(3)
    ready = asyncio.Event()

    async def opened() -> set[str]:
        image = Image(run=["touch /root/begun; while [ ! -e /root/go-on ]; do sleep 0.05; done"])
        async with Pool(provider=ssh(made, connect_timeout=15), nodes=2, image=image, console="silent") as pool:
            ready.set()
            return set(await pool.broadcast(where()))

    async with asyncio.timeout(BOUNDED_S):
        opening = asyncio.create_task(opened())
        while not any(host.path("/root/begun").exists() for host in made):
            await asyncio.sleep(0.01)
        assert not ready.is_set()
        victim = next(host for host in made if host.path("/root/begun").exists())
        victim.stop_sshd(sessions=True)
        victim.power_off()
        for host in made:
            if host is not victim:
                host.path("/root/go-on").touch()
        assert await opening == {host.name for host in made} - {victim.name}


async def test_an_opening_that_is_cancelled_leaves_nothing(hosts, ssh):
    made = hosts(2)
    image = Image(run=["touch /root/begun; sleep 100"])

    async def opens() -> None:
        async with Pool(provider=ssh(made), nodes=2, image=image, console="silent"):
            pytest.fail("the pool opened")

    task = asyncio.create_task(opens())
    async with asyncio.timeout(BOUNDED_S):
        while not all(host.path("/root/begun").exists() for host in made):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while not clean(made):
            await asyncio.sleep(0.01)
    for host in made:
        assert host.run("ls", "/root/.cache/outrider/pools").stdout == ""
