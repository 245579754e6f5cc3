"""Into a host as its user would: what is checked, through what it goes, and what a refusal says."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from outrider.actors.interfaces import ConnectFailed
from outrider.engine.api.errors import AuthError, HostKeyError, SpecError
from outrider.engine.transport import login, ssh
from outrider.engine.transport.login import ssh_refusal
from outrider.engine.transport.ssh import RemoteShell
from outrider.providers.base import Address, Login, Machine, MachineId

pytestmark = pytest.mark.anyio
Serve = Callable[..., AbstractAsyncContextManager[Any]]
KEY = asyncssh.generate_private_key("ssh-ed25519")


@contextmanager
def nobody_listens() -> Iterator[int]:
    """A port of this computer that is taken, so that nobody else begins to listen there meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


async def whoami(machine: Machine) -> bytes:
    reached = await ssh.connect(machine, KEY)
    try:
        return (await RemoteShell(reached.connection).run(["echo", "it's", "here"])).stdout
    finally:
        reached.abort()


async def refused(machine: Machine) -> ConnectFailed:
    with pytest.raises((asyncssh.Error, OSError)) as error:
        await ssh.connect(machine, KEY)
    return await ssh_refusal(machine, error.value)


async def test_a_known_host_lets_the_user_in(serve: Serve) -> None:
    async with serve() as site:
        assert await whoami(site.machine(known_hosts=(site.known_hosts(),))) == b"it's here\n"
        assert site.logins == ["ml"]


async def test_a_host_key_given_with_the_host_needs_no_file(serve: Serve) -> None:
    async with serve() as site:
        machine = site.machine()
        given = Machine(machine.id, machine.address, site.public_key, login=machine.login)
        assert await whoami(given) == b"it's here\n"


async def test_an_unknown_host_is_not_trusted_and_the_error_says_how_it_could_be(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    async with serve() as site:
        failed = await refused(site.machine(known_hosts=(str(tmp_path / "empty"),)))
    assert isinstance(failed.__cause__, HostKeyError)
    assert failed.fatal
    assert not failed.systematic
    assert f"`ssh -p {site.port} 127.0.0.1`" in str(failed)


async def test_a_changed_host_key_is_refused_with_what_it_means(serve: Serve) -> None:
    async with serve() as site:
        old = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
        failed = await refused(site.machine(known_hosts=(site.known_hosts(old),)))
    assert isinstance(failed.__cause__, HostKeyError)
    assert f"ssh-keygen -R '[127.0.0.1]:{site.port}'" in str(failed)
    assert site.logins == []


async def test_without_any_known_hosts_nothing_is_trusted(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider.providers.shared.ssh_stops.KNOWN_HOSTS", ())
    async with serve() as site:
        assert isinstance((await refused(site.machine())).__cause__, HostKeyError)


async def test_a_configuration_that_turns_the_check_off_is_not_followed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outrider.providers.shared.ssh_stops.KNOWN_HOSTS", ())
    config = tmp_path / "config"
    async with serve() as site:
        config.write_text(
            "Host *\n  UserKnownHostsFile none\n  GlobalKnownHostsFile none\n  StrictHostKeyChecking no\n"
        )
        assert isinstance((await refused(site.machine(config=(str(config),)))).__cause__, HostKeyError)


async def test_kerberos_never_vouches_for_a_host_and_is_given_no_credentials(tmp_path: Path) -> None:
    """With a key exchange by GSSAPI the host's key would be compared with none."""
    config = tmp_path / "config"
    config.write_text("Host *\n  GSSAPIKeyExchange yes\n  GSSAPIDelegateCredentials yes\n")
    way = Login((), (), (str(config),), None)
    (stop,) = await login.stops(Address("127.0.0.1", 22, user="ml"), way, "")
    assert (stop.options.gss_kex, stop.options.gss_delegate_creds, stop.options.gss_auth) == (False, False, True)


async def test_the_pools_own_connections_know_no_kerberos(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    async def connect(*_: object, **options: object) -> None:
        asked.update(options)
        raise ConnectionRefusedError

    monkeypatch.setattr(asyncssh, "connect", connect)
    machine = Machine(MachineId("0"), Address("127.0.0.1", 22), KEY.export_public_key().decode())
    with pytest.raises(ConnectionRefusedError):
        await ssh.connect(machine, KEY)
    assert (asked["gss_kex"], asked["gss_host"]) == (False, None)
    assert asyncssh.SSHClientConnectionOptions(gss_host=None, gss_kex=False).gss_host is None


async def test_a_host_that_takes_only_passwords_says_so(serve: Serve) -> None:
    async with serve(methods=("password",)) as site:
        failed = await refused(site.machine(known_hosts=(site.known_hosts(),)))
    assert isinstance(failed.__cause__, AuthError)
    assert "does not take keys, only" in str(failed)
    assert "password" in str(failed)


async def test_a_key_that_is_not_accepted_names_the_key_and_what_to_do(serve: Serve, tmp_path: Path) -> None:
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "other")
    async with serve() as site:
        failed = await refused(site.machine(keys=(str(tmp_path / "other"),), known_hosts=(site.known_hosts(),)))
    assert isinstance(failed.__cause__, AuthError)
    assert str(tmp_path / "other") in str(failed)
    assert "ssh-copy-id" in str(failed)


async def test_a_key_with_a_passphrase_belongs_into_an_agent(serve: Serve, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(locked, "pkcs8-pem", "secret")
    async with serve() as site:
        machine = site.machine(keys=(str(locked),), known_hosts=(site.known_hosts(),))
        with pytest.raises(asyncssh.KeyImportError) as error:
            await ssh.connect(machine, KEY)
    failed = await ssh_refusal(machine, error.value)
    assert isinstance(failed.__cause__, AuthError)
    assert f"The private key {locked}, for 127.0.0.1 port" in str(failed)
    assert f"`ssh-add {locked}`, and leave out key=" in str(failed)


async def test_a_closed_port_may_open_later(serve: Serve) -> None:
    async with serve() as site:
        with nobody_listens() as site.port:
            failed = await refused(site.machine(known_hosts=(site.known_hosts(),)))
    assert not failed.futile
    assert f"127.0.0.1 port {site.port} refuses the connection" in str(failed)


async def test_a_name_that_does_not_exist_is_not_asked_for_again_and_may_exist_later(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def getaddrinfo(*_: object, **__: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    failed = await refused(Machine(MachineId("pool/gpu"), Address("gpu"), "", login=Login()))
    assert isinstance(failed.__cause__, SpecError)
    assert (failed.futile, failed.fatal) == (True, False)
    assert str(failed).startswith("There is no host of the name gpu,")
    assert "SSH(config=True)" in str(failed)
    (config := tmp_path / "config").write_text("Host gpu\n  HostName gpu-1.example\n")
    failed = await refused(Machine(MachineId("pool/gpu"), Address("gpu"), "", login=Login(config=(str(config),))))
    assert "the name gpu-1.example," in str(failed)
    assert "config=True" not in str(failed)


async def test_what_is_no_ssh_server_is_told_by_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, says: bytes) -> None:
        writers.append(writer)
        await reader.read(1)
        writer.write(says)
        if says:
            writer.close()

    stories: dict[bytes, ConnectFailed] = {}
    silent = "takes connections and says nothing"
    for says, within_s in ((b"HTTP/1.1 400 \x1b[2JBad Request\r\n\r\n", 60.0), (b"", 2.0), (b"", 20.0)):
        if silent in str(stories.get(says)):
            break  # a busy computer may not even connect within the 2 s
        monkeypatch.setattr(login, "SAY_S", within_s)
        monkeypatch.setattr("outrider.engine.transport.ssh.CONNECT_S", 60.0 if says else 0.5)
        async with await asyncio.start_server(partial(talk, says=says), "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            machine = Machine(MachineId("pool/gpu"), Address("127.0.0.1", port), "", login=Login())
            stories[says] = await refused(machine)
            for writer in writers:  # from Python 3.12 on the server's own end waits for them
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()
    web, mute = stories.values()
    assert "is no SSH server, as what listens there says 'HTTP/1.1 400 Bad Request'" in str(web)
    assert isinstance(web.__cause__, SpecError)
    assert (web.futile, web.fatal, mute.futile) == (True, False, False)
    assert silent in str(mute)


async def test_a_key_that_was_removed_since_is_told_of(serve: Serve, tmp_path: Path) -> None:
    async with serve() as site:
        machine = site.machine(known_hosts=(site.known_hosts(),), keys=(str(tmp_path / "gone"),))
        assert "No such file" in str(await refused(machine))


async def test_the_configuration_names_host_port_user_and_key(serve: Serve, tmp_path: Path) -> None:
    config = tmp_path / "config"
    async with serve() as site:
        config.write_text(
            f"Host gpu\n  HostName 127.0.0.1\n  Port {site.port}\n  User kim\n  IdentityFile {tmp_path / 'key'}\n"
            f"  UserKnownHostsFile {site.known_hosts()}\n"
        )
        machine = Machine(MachineId("pool/gpu"), Address("gpu"), "", login=Login(config=(str(config),)))
        assert await whoami(machine) == b"it's here\n"
        assert site.logins == ["kim"]


@pytest.mark.parametrize("way", ["given", "configured"])
async def test_a_host_is_reached_through_jump_hosts(serve: Serve, tmp_path: Path, way: str) -> None:
    async with serve() as bastion, serve() as inner:
        known = tmp_path / "both"
        known.write_text("".join(f"[127.0.0.1]:{site.port} {site.public_key}\n" for site in (bastion, inner)))
        config = tmp_path / "config"
        config.write_text(f"Host 127.0.0.1\n  ProxyJump gate@bastion\nHost bastion\n  HostName 127.0.0.1\n"
                          f"  Port {bastion.port}\n")  # fmt: skip
        settings: dict[str, Any] = {"known_hosts": (str(known),)}
        if way == "given":
            settings["jump"] = f"gate@127.0.0.1:{bastion.port}"
        else:
            settings["config"] = (str(config),)
        machine = inner.machine(**settings)
        assert await whoami(machine) == b"it's here\n"
        assert bastion.logins == ["gate"]
        assert inner.logins == ["ml"]
        assert bastion.forwarded == [("127.0.0.1", inner.port)]


async def test_each_jump_host_may_be_configured_to_lie_behind_another(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(
        "Host gpu\n  ProxyJump inner\nHost inner\n  ProxyJump kim@middle:2201,last\n"
        "Host middle\n  ProxyJump gate\nHost gate\n  ProxyJump ann@[2001:db8::1]:2222\n"
    )
    found = await login.stops(Address("gpu", user="ml"), Login((), (), (str(config),), None), "")
    assert [(stop.host, stop.port) for stop in found] == [
        ("2001:db8::1", 2222), ("gate", 22), ("middle", 2201), ("last", 22), ("inner", 22), ("gpu", 22)
    ]  # fmt: skip
    assert [found[number].options.username for number in (0, 2, -1)] == ["ann", "kim", "ml"]


async def test_jump_hosts_that_lead_through_each_other_are_an_error(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host gpu\n  ProxyJump one\nHost one\n  ProxyJump two\nHost two\n  ProxyJump one\n")
    machine = Machine(MachineId("pool/gpu"), Address("gpu"), "", login=Login(config=(str(config),)))
    with pytest.raises(ValueError, match="more than 8 jump hosts") as error:
        await ssh.connect(machine, KEY)
    assert "gpu: more than 8 jump hosts" in str(await ssh_refusal(machine, error.value))


async def test_a_jump_host_is_checked_like_any_other(serve: Serve, tmp_path: Path) -> None:
    async with serve() as bastion, serve() as inner:
        known = tmp_path / "inner-alone"
        known.write_text(f"[127.0.0.1]:{inner.port} {inner.public_key}\n")
        with pytest.raises(login.JumpFailed) as error:
            await ssh.connect(inner.machine(known_hosts=(str(known),), jump=f"gate@127.0.0.1:{bastion.port}"), KEY)
        assert isinstance(error.value.__cause__, asyncssh.HostKeyNotVerifiable)
        assert bastion.logins == [] == inner.logins


async def test_what_a_jump_host_refuses_is_said_of_the_jump_host(serve: Serve, tmp_path: Path) -> None:
    """Else the user would forget the key of a host that has nothing to do with it."""
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(tmp_path / "other")
    old = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    async with serve() as jump, serve() as site:
        known, way = tmp_path / "known", f"kim@127.0.0.1:{jump.port}"
        for key, story in (
            (old, f"ssh-keygen -R '[127.0.0.1]:{jump.port}'"),
            (None, f"`ssh -p {jump.port} 127.0.0.1`"),
        ):
            line = f"[127.0.0.1]:{jump.port} {key}\n" if key else ""
            known.write_text(f"{line}[127.0.0.1]:{site.port} {site.public_key}\n")
            failed = await refused(site.machine(known_hosts=(str(known),), jump=way))
            assert isinstance(failed.__cause__, HostKeyError)
            assert story in str(failed)
        known.write_text("".join(f"[127.0.0.1]:{each.port} {each.public_key}\n" for each in (jump, site)))
        failed = await refused(site.machine(known_hosts=(str(known),), jump=way, keys=(str(tmp_path / "other"),)))
        assert isinstance(failed.__cause__, AuthError)
        assert str(failed).startswith(
            f"kim@127.0.0.1 port {jump.port}, on the way to 127.0.0.1 port {site.port}, accepts"
        )
        with nobody_listens() as gone:
            failed = await refused(site.machine(known_hosts=(str(known),), jump=f"kim@127.0.0.1:{gone}"))
    assert not failed.fatal
    assert f"127.0.0.1 port {gone}, on the way to 127.0.0.1 port {site.port}, refuses the connection" in str(failed)


async def test_a_host_key_that_is_none_is_said_to_be_that(serve: Serve) -> None:
    async with serve() as site:
        machine = site.machine()
        given = Machine(machine.id, machine.address, "AAAA not a key", login=machine.login)
        with pytest.raises(SpecError, match="host_key") as error:
            await ssh.connect(given, KEY)
    assert (await ssh_refusal(given, error.value)).fatal
