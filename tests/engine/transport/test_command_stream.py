"""SSH over a command's standard streams: on this computer, and on a login host."""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from outrider.actors.interfaces import ConnectFailed
from outrider.engine.api.errors import AuthError, HostKeyError
from outrider.engine.transport import command_stream, reachability, ssh
from outrider.engine.transport.connection_settings import SharedLogin, SharedLogins
from outrider.engine.transport.login import ssh_refusal
from outrider.engine.transport.ssh import Connected, RemoteShell
from outrider.providers.base import Address, Login, Machine, MachineId
from outrider.providers.shared import local_command
from outrider.providers.slurm.step import programs

pytestmark = pytest.mark.anyio
Serve = Callable[..., AbstractAsyncContextManager[Any]]
BIG = os.urandom(3 << 20)


def relay(port: int) -> tuple[str, ...]:
    """A command whose standard streams are a connection to that port."""
    folder = str(Path(programs.__file__).parent)
    code = """
import socket, sys
sys.path.insert(0, sys.argv[1])
import relay
sock = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
sys.stderr.write("it begins")
relay.carry(relay.Side(0, 1), relay.Side(sock.fileno(), sock.fileno(), hang_up=sock))
"""
    return (sys.executable, "-I", "-S", "-c", code, folder, str(port))


def machine(site: Any, *command: str, login: Login | None = None) -> Machine:
    argv = command or relay(site.port)
    return Machine(MachineId("job/c0"), Address(user="ml", command=argv), site.public_key, login=login)


def login_of(site: Any, **more: Any) -> Login:
    keys, known = (str(site.folder / "key"),), (site.known_hosts(),)
    return Login(keys, known, jump=f"ml@127.0.0.1:{site.port}", **more)


async def connect(node: Any, to: Machine, logins: SharedLogins | None = None) -> Connected:
    key = asyncssh.read_private_key(node.folder / "key")
    return await command_stream.connect(to, key, (), logins or SharedLogins())


async def refused(node: Any, to: Machine) -> ConnectFailed:
    with pytest.raises((asyncssh.Error, OSError)) as error:
        await connect(node, to)
    return await ssh_refusal(to, error.value)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


def children() -> list[str]:
    """Of this process, dead ones too, but for those of the servers here."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found += (task / "children").read_text().split()
    return found


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outrider-command"]


@pytest.fixture(autouse=True)
def _ends_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that has closed its streams may end a while later on a busy computer."""
    monkeypatch.setattr(command_stream, "ENDS_S", 60.0)


@pytest.fixture
async def nothing_is_left() -> Any:
    before = set(children())
    yield
    await until(lambda: not watchers() and set(children()) <= before)
    gc.collect()


@pytest.mark.parametrize("there", [False, True], ids=["here", "login host"])
async def test_it_carries_a_connection_both_ways(serve: Serve, nothing_is_left: None, there: bool) -> None:
    async with serve() as node, serve() as site:
        reached = await connect(node, machine(node, login=login_of(site) if there else None))
        back = bytearray()
        await RemoteShell(reached.connection).run(["cat"], stdin=BIG, output=back.extend)
        assert back == BIG
        assert site.logins == (["ml"] if there else [])
        assert reached.fileno() >= 0  # children that are forked do not have it
        reached.abort()


@pytest.mark.parametrize("there", [False, True], ids=["here", "login host"])
async def test_another_host_key_is_refused(serve: Serve, nothing_is_left: None, there: bool) -> None:
    async with serve() as node, serve() as site:
        to = replace(machine(node, login=login_of(site) if there else None), host_key=site.public_key)
        failed = await refused(node, to)
    assert isinstance(failed.__cause__, HostKeyError)
    assert (failed.fatal, failed.systematic) == (True, True)
    assert str(failed).startswith("Machine job/c0 shows another host key than the one pinned for it")
    assert node.logins == []


async def test_another_host_key_of_the_login_host_is_refused(serve: Serve, nothing_is_left: None) -> None:
    async with serve() as node, serve() as site:
        to = machine(node, login=login_of(site))
        site.known_hosts(node.public_key)
        failed = await refused(node, to)
    assert isinstance(failed.__cause__, HostKeyError)
    assert f"127.0.0.1 port {site.port}, on the way to machine job/c0, shows another host key" in str(failed)
    assert site.logins == []


async def test_a_key_that_the_machine_does_not_know_is_said_to_be_the_pools(serve: Serve) -> None:
    async with serve() as node, serve() as site:
        to = machine(node, login=login_of(site))
        other = asyncssh.generate_private_key("ssh-ed25519")
        with pytest.raises(asyncssh.PermissionDenied) as error:
            await command_stream.connect(to, other, (), SharedLogins())
        failed = await ssh_refusal(to, error.value)
    assert isinstance(failed.__cause__, AuthError)
    assert str(failed).startswith("Machine job/c0 does not accept this pool's key")


@pytest.mark.parametrize("there", [False, True], ids=["here", "login host"])
async def test_a_command_that_fails_says_why(serve: Serve, nothing_is_left: None, there: bool) -> None:
    said = "yes 'noise of old' | head -c 9999 >&2; echo 'srun: error: Unable to confirm allocation' >&2; exit 3"
    async with serve() as node, serve() as site:
        failed = await refused(node, machine(node, "sh", "-c", said, login=login_of(site) if there else None))
    place = f" on ml@127.0.0.1:{site.port}" if there else ""
    text = str(failed)
    assert text.startswith("machine job/c0 cannot be reached: `sh -c 'yes '")
    assert f"`{place} ended with status 3 before an SSH server was reached, and said: " in text
    assert text.endswith("srun: error: Unable to confirm allocation")
    assert len(text) < 5000
    assert not failed.fatal


async def test_a_command_that_is_not_there_says_so(serve: Serve, nothing_is_left: None) -> None:
    async with serve() as node, serve() as site:
        here = await refused(node, machine(node, "no-such-srun", "-u"))
        there = await refused(node, machine(node, "no-such-srun", login=login_of(site)))
    assert "`no-such-srun -u` cannot be started here: No such file or directory" in str(here)
    assert "ended with status 127 before an SSH server was reached, and said: sh: " in str(there)


@pytest.mark.parametrize("there", [False, True], ids=["here", "login host"])
async def test_a_command_that_hangs_is_given_up_in_time(serve: Serve, nothing_is_left: None, there: bool) -> None:
    async with serve() as node, serve() as site:
        waits = ("sh", "-c", f"echo waiting for a node >&2; exec {'cat >/dev/null' if there else 'sleep 1000'}")
        hangs = machine(node, *waits, login=login_of(site) if there else None)
        for patience_s in (0.7, 7.0, 70.0):  # a busy computer may not even start it within the first
            failed = await refused(node, replace(hangs, patience_s=patience_s))
            if "waiting for a node" in str(failed):
                break
    said = f"has reached no SSH server within {patience_s:g} s, and said: waiting for a node: run it by hand"
    assert said in str(failed)


async def test_a_command_that_does_not_go_is_killed(
    serve: Serve, nothing_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_command, "LEAVES_S", 0.1)
    monkeypatch.setattr(local_command, "OBEYS_S", 0.1)
    async with serve() as node:
        stays = shlex.join(relay(node.port))
        reached = await connect(node, machine(node, "sh", "-c", f"trap '' TERM; {stays}; while :; do sleep 1000; done"))
        reached.abort()
        await until(lambda: not watchers())


@pytest.mark.parametrize("there", [False, True], ids=["here", "login host"])
async def test_cancelled_at_any_time_it_leaves_nothing(serve: Serve, nothing_is_left: None, there: bool) -> None:
    async with serve() as node, serve() as site:
        for step_s in range(12):
            logins = SharedLogins()
            to = machine(node, login=login_of(site) if there else None)
            connecting = asyncio.ensure_future(connect(node, to, logins))
            await asyncio.sleep(0.02 * step_s)
            connecting.cancel()
            await asyncio.wait([connecting])
            if not connecting.cancelled():  # it was ready, or became so then: `asyncio.wait_for` of 3.11 returns it
                connecting.result().abort()
        await until(lambda: all(child.returncode is not None for child in site.children))


@pytest.mark.parametrize("reached", [True, False])
async def test_a_command_of_a_login_host_that_reads_nothing_ends_with_its_connection(
    serve: Serve, nothing_is_left: None, *, reached: bool
) -> None:
    """As ssh does not that waits for a host without power, and srun for a step there."""
    async with serve() as node, serve() as site:
        mark = node.folder / "begun"
        waits = f"touch {mark}; {shlex.join(relay(node.port)) if reached else ':'}; exec sleep 1000"
        stays = machine(node, "sh", "-c", waits, login=login_of(site))
        connecting = asyncio.ensure_future(connect(node, stays))
        if reached:
            (await connecting).abort()
        else:
            await until(lambda: mark.exists() and site.children)  # the command may be quicker than its server
            connecting.cancel()
        await until(lambda: site.children[0].returncode is not None)
        assert site.children[0].returncode == -signal.SIGTERM


async def test_machines_share_the_connection_to_a_login_host(
    serve: Serve, nothing_is_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_stream, "REUSE_S", 60.0)
    logins = SharedLogins()
    async with serve() as node, serve() as site:
        to = machine(node, login=login_of(site))
        all_of_them = await asyncio.gather(*(connect(node, to, logins) for _ in range(4)))
        assert (len(site.logins), len(node.logins)) == (1, 4)
        *gone, stays = all_of_them
        for each in gone:
            each.abort()
        await asyncio.sleep(0.1)
        assert (await RemoteShell(stays.connection).run(["echo", "on"])).stdout == b"on\n"
        stays.abort()
        await until(stays.connection.is_closed)
        again = await connect(node, to, logins)
        assert len(site.logins) == 2
        again.abort()


async def test_a_login_host_that_is_not_reached_is_heard_of_once_by_all(serve: Serve, monkeypatch: Any) -> None:
    dialled: list[Login] = []

    async def fails(machine: Machine, way: Login) -> Connected:
        dialled.append(way)
        await asyncio.sleep(0.01)
        raise ConnectionRefusedError("no")

    monkeypatch.setattr(command_stream, "_dialled", fails)
    logins = SharedLogins()
    async with serve() as node:
        to = machine(node, login=Login(jump="login"))
        results = await asyncio.gather(*(connect(node, to, logins) for _ in range(3)), return_exceptions=True)
        assert [str(each) for each in results] == ["no"] * 3
        assert len(dialled) == 1
        with pytest.raises(ConnectionRefusedError):
            await connect(node, to, logins)
        assert len(dialled) == 2


async def test_a_shared_connection_that_is_dead_is_used_by_nobody_else(serve: Serve, monkeypatch: Any) -> None:
    monkeypatch.setattr(command_stream, "REUSE_S", 0.2)
    logins = SharedLogins()
    async with serve() as node, serve() as site:
        to = machine(node, login=login_of(site))
        first = await connect(node, to, logins)
        sock = first.connection.get_extra_info("socket")
        paused = first.hops or [shared.connected.connection for shared in logins._places[to.login].open]
        paused[0]._transport.pause_reading()  # nothing is heard of it any more
        assert sock.fileno() >= 0
        second = await connect(node, to, logins)
        assert len(site.logins) == 2
        monkeypatch.setattr(command_stream, "REUSE_S", 60.0)
        third = await connect(node, to, logins)
        assert len(site.logins) == 2
        for each in (first, second, third):
            each.abort()


class Watcher(asyncssh.SSHClientSession[bytes]):
    """Notes, when its connection is lost, whether the way to the machine is."""

    def __init__(self, connected: Connected) -> None:
        self.connected = connected
        self.way_is_lost: bool | None = None

    def connection_lost(self, _error: Exception | None) -> None:
        self.way_is_lost = self.connected.way_is_lost


@pytest.mark.parametrize("way", ["command", "jump"])
@pytest.mark.parametrize("lost", [True, False])
async def test_a_way_that_is_lost_is_told_from_a_machine_that_is(serve: Serve, way: str, *, lost: bool) -> None:
    async with serve() as site, serve() as node:
        if way == "command":
            connected = await connect(node, machine(node, login=login_of(site)))
        else:
            known = node.folder / "both"
            known.write_text("".join(Path(each.known_hosts()).read_text() for each in (site, node)))
            behind = node.machine(known_hosts=(str(known),), jump=f"ml@127.0.0.1:{site.port}")
            connected = await ssh.connect(behind, asyncssh.read_private_key(node.folder / "key"))
        watcher = Watcher(connected)
        await connected.connection.create_session(lambda: watcher, "cat", encoding=None)
        assert not connected.way_is_lost
        (site if lost else node).connections[-1].abort()
        await until(lambda: watcher.way_is_lost is not None)
        assert watcher.way_is_lost is lost
        connected.abort()


async def test_a_session_that_does_not_open_in_time_leaves_no_connection_that_times_out(monkeypatch: Any) -> None:
    monkeypatch.setattr(command_stream, "REUSE_S", 0.01)
    sessions: list[Any] = []

    class Silent:
        async def create_session(self, factory: Callable[[], Any], *_: object, **__: object) -> None:
            sessions.append(factory())
            await asyncio.sleep(60)

    silent: Any = Silent()
    shared = SharedLogin(Connected(silent), users=2)
    made: list[object] = []
    session = command_stream._Session(("true",), shared, patient=False)
    with pytest.raises(command_stream._Unusable):
        await session.create_connection(lambda: made.append("a connection"), "node", 22)
    [late] = sessions
    late.session_started()
    late.data_received(b"SSH-2.0-late", None)
    late.connection_lost(None)
    assert made == []


async def test_a_command_of_this_computer_says_nothing_of_its_network(serve: Serve) -> None:
    asked: list[tuple[str, int]] = []

    async def answers(host: str, port: int, *, behind: bool) -> bool:
        asked.append((host, port))
        return False

    async with serve() as node, serve() as site:
        here, there = machine(node), machine(node, login=login_of(site))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reachability, "answers", answers)
            assert not await reachability.anybody([here])
            assert asked == []
            assert not await reachability.anybody([there])
            assert asked == [("127.0.0.1", site.port)]
