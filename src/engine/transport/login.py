"""The user's own SSH access to a host: keys, known hosts and configuration, resolved as ``ssh`` does, and always
checked.

This module also builds the errors, with advice, for machines that SSH could not reach: because of a host's name, the
network, a missing or rejected key, or another service that responds at the port.
"""

from __future__ import annotations

import asyncio
import errno
import re
import shlex
import socket
from collections.abc import Sequence
from contextlib import suppress

import asyncssh

from ...actors.interfaces import ConnectFailed
from ...providers.base import Address, Login, Machine
from ...providers.shared import ssh_stops
from ...providers.shared.login_options import passphrase_advice
from ...providers.shared.ssh_config import ConfigMistake
from ...providers.shared.ssh_stops import JumpFailed, ProxyCommandFailed, Stop
from ..api.errors import AuthError, HostKeyError, SpecError
from ..api.printable import plain, plainly
from .route import because, refusal

SAY_S = 1.0  # seconds for a server to send its greeting
GREETING_CHARS = 60  # characters of the greeting to show
NO_SUCH_NAME = (socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME))
_NO_WAY = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ETIMEDOUT}
_OURS = b"SSH-%b-Outrider\r\n" % b"2.0"


def no_such_name(error: BaseException) -> bool:
    """Return whether the host's name does not exist, according to this computer's resolver."""
    return isinstance(error, socket.gaierror) and error.errno in NO_SUCH_NAME


def is_refused(error: BaseException) -> bool:
    """Return whether the host is up, and nothing listens at the port."""
    return isinstance(error, OSError) and _code(error) == errno.ECONNREFUSED


def network_story(error: BaseException, place: str, host: str, port: int) -> str:
    """Return why ``place`` could not be reached, and what to check; empty: only the error is known."""
    code = _code(error) if isinstance(error, OSError) else None
    match error:
        case socket.gaierror():
            return f"the name {host} could not be looked up ({error.strerror}): see that this computer's network is up"
        case OSError() if code == errno.ECONNREFUSED:
            return (
                f"{place} refuses the connection, as nothing listens at its port {port}: see that its SSH server runs, "
                "and at that port"
            )
        case OSError() if code in _NO_WAY:
            why = error.strerror or error
            return f"there is no way to {place} ({why}): see that it is on, and in a network that this computer reaches"
        case _:
            return ""


def _code(error: OSError) -> int | None:
    """Return the error's number. If several addresses were tried, return the number that all their errors share."""
    if error.errno is not None:
        return error.errno
    codes = {int(each) for each in re.findall(r"\[Errno (\d+)\]", str(error))}
    return codes.pop() if len(codes) == 1 else None


async def read_greeting(host: str, port: int) -> str | None:
    """Return the first line that the server at a port sends; the port should belong to an SSH server. Cancel-safe.

    Empty: the server sends no greeting. None: the server is an SSH server, or nothing listens at the port.
    """
    received, writer = b"", None
    try:
        async with asyncio.timeout(SAY_S):
            reader, writer = await asyncio.open_connection(host, port)
        async with asyncio.timeout(SAY_S):
            writer.write(_OURS)
            while (
                len(received) < GREETING_CHARS and b"\n" not in received and (data := await reader.read(GREETING_CHARS))
            ):
                received += data
    except (OSError, TimeoutError):
        pass
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                writer.transport.abort()
    return None if writer is None or received.startswith(b"SSH-") else first_line(received)


def first_line(received: bytes) -> str:
    lines = plain(received[:GREETING_CHARS].decode(errors="replace")).splitlines()
    return lines[0].strip() if lines else ""


CONNECT_S = 10.0  # seconds to connect to each host on the way, if the machine has no ``patience_s``
ASK_METHODS_S = 5.0


async def stops(address: Address, way: Login, host_key: str) -> Sequence[Stop]:
    """Resolve the hosts on the way as `ssh_stops.stops` does, with errors for users' mistakes.

    Raises:
        SpecError: the configuration, or a host key from the user, cannot work.
        asyncssh.Error, OSError, ValueError: a key or a known_hosts file cannot be read.
    """
    if host_key:
        _check_host_key(host_key, address.host)
    try:
        return await ssh_stops.stops(address, way, host_key)
    except (ConfigMistake, UnicodeError) as error:
        raise _mistake(address.host, error) from error


async def jumps(way: Login) -> Sequence[Stop]:
    """Resolve the jump hosts as `ssh_stops.jumps` does. It raises the errors of `stops`."""
    try:
        return await ssh_stops.jumps(way)
    except (ConfigMistake, UnicodeError) as error:
        raise _mistake(way.jump or "", error) from error


def _mistake(host: str, error: ValueError) -> SpecError:
    if isinstance(error, ConfigMistake):
        return SpecError(f"{host}: {error}.")
    return SpecError(f"{host}: a file of your SSH access is no text ({error}): look at known_hosts and config=.")


async def _way(machine: Machine) -> Sequence[Stop]:
    assert machine.address is not None
    assert machine.login is not None
    if machine.address.command:
        return await jumps(machine.login)
    return await stops(machine.address, machine.login, machine.host_key)


def _check_host_key(text: str, host: str) -> None:
    try:
        asyncssh.import_public_key(text)
    except asyncssh.KeyImportError as error:
        raise SpecError(
            f"Host({host!r}, host_key={text!r}) is not a public key: give the line that `ssh-keyscan {host}` prints, "
            'from its "ssh-..." on, when you have compared it with the host\'s own /etc/ssh/ssh_host_*_key.pub.'
        ) from error


# --- errors -----------------------------------------------------------------------------------------------------------


async def ssh_refusal(machine: Machine, error: BaseException) -> ConnectFailed:  # noqa: PLR0911  a table
    """Return the error to report for ``error``: as `route.refusal`, with more advice for errors of `ssh.connect`."""
    stop, error = None, plainly(error)
    if isinstance(error, JumpFailed) and error.__cause__ is not None:
        stop, error = error.stop, error.__cause__
    place, by_pool = _place(machine, stop), _by_the_pool(machine, stop)
    match error:
        case asyncssh.HostKeyNotVerifiable() if machine.rotate_host_key:
            # Until the cloud's first boot has installed our host key, the machine's SSH server shows a key of its own.
            failed = ConnectFailed(story := await _host_key_story(machine, stop, error))
            # the error that the user gets when the time to reach the machine is over
            failed.__cause__ = HostKeyError(story)
            return failed
        case asyncssh.HostKeyNotVerifiable():
            return because(HostKeyError(await _host_key_story(machine, stop, error)), systematic=by_pool)
        case asyncssh.PermissionDenied():
            return because(AuthError(await _login_story(machine, stop, error)), systematic=by_pool)
        case asyncssh.KeyImportError() | asyncssh.KeyEncryptionError():
            return because(AuthError(_key_story(machine, place, str(error))))
        case asyncssh.KeyExchangeFailed() if not by_pool:
            return _futile(
                f"{place} and Outrider have no algorithm in common ({error}): allow one that both have in the host's "
                "/etc/ssh/sshd_config, or by Ciphers, MACs, KexAlgorithms or HostKeyAlgorithms of SSH(config=...)."
            )
        case ProxyCommandFailed(futile=True):
            return _futile(f"{place} cannot be reached: {error}. Put the program there, or its whole path.")
        case ProxyCommandFailed():
            return ConnectFailed(f"{place} cannot be reached: {error}")
        case asyncssh.Error() | OSError() if not by_pool and machine.address is not None:
            return await _unreached(machine, stop, error, place)
        case TimeoutError(errno=None):
            return ConnectFailed(f"{place} did not answer within {machine.patience_s or CONNECT_S:g} s")
        case asyncssh.ConnectionLost():
            return ConnectFailed(f"{place} closed the connection before it was logged in: {error}")
        case _:
            return refusal(machine, error, place)


async def _unreached(  # noqa: PLR0911  a table
    machine: Machine, stop: Stop | None, error: BaseException, place: str
) -> ConnectFailed:
    """Return the error for one of the user's own hosts on which no SSH server was reached."""
    assert machine.address is not None
    assert machine.login is not None
    try:
        way = await _way(machine)
    except (OSError, ValueError, asyncssh.Error):  # a file of the SSH configuration can no longer be read
        return refusal(machine, error, place)
    at = stop or way[-1]
    if no_such_name(error):
        return _futile(_name_story(at.host, machine.login))
    if isinstance(error, asyncssh.ChannelOpenError) and len(way) > 1:
        return ConnectFailed(f"{place} is not reached from the jump host before it: {error.reason}")
    if reason := network_story(error, place, at.host, at.port):
        return ConnectFailed(reason, refused=is_refused(error))
    direct = at.place == way[0].place and not at.proxy_command
    if direct and (other := await _no_server(at, error, place)) is not None:
        return other
    if isinstance(error, TimeoutError):
        within_s = machine.patience_s or CONNECT_S
        ways = f"see that it is on, and that each firewall on the way lets port {at.port} through"
        return ConnectFailed(f"{place} did not answer within {within_s:g} s: {ways}")
    if isinstance(error, asyncssh.ConnectionLost):
        return ConnectFailed(f"{place} closed the connection before it was logged in: {error}")
    return refusal(machine, error, place)


async def _no_server(at: Stop, error: BaseException, place: str) -> ConnectFailed | None:
    """Connect to the port once more, to find out what listens there. Return None if it may be an SSH server."""
    if not isinstance(error, ConnectionError | TimeoutError | asyncssh.ConnectionLost):
        return None
    greeting = await read_greeting(at.host, at.port)
    if greeting:
        how = f"give the port of that host's, as in Host({at.host!r}, port=22)"
        return _futile(f"{place} is no SSH server, as what listens there says {greeting!r}: {how}.")
    if greeting is None:
        return None
    return ConnectFailed(
        f"{place} takes connections and says nothing, where an SSH server would say that it is one: see whether the "
        "port is right"
    )


def _futile(story: str) -> ConnectFailed:
    failed = ConnectFailed(story, futile=True)
    failed.__cause__ = SpecError(story)
    return failed


def _name_story(host: str, way: Login) -> str:
    files = "" if way.config else " A name of ~/.ssh/config is known with SSH(config=True)."
    return f"There is no host of the name {host}, in the DNS or in /etc/hosts: look for a misspelling.{files}"


def _key_story(machine: Machine, place: str, error: str) -> str:
    keys = () if machine.login is None else machine.login.keys
    which = f"The private key {keys[0]}" if keys else "A private key that your SSH configuration names"
    if "assphrase" in error:
        add = f"ssh-add {keys[0]}" if keys else "ssh-add"
        return f"{which}, for {place}, has a passphrase, which nobody is asked for here: {passphrase_advice(add)}"
    return f"{which}, for {place}, cannot be read ({error}): `ssh-keygen -y -f` with it says whether it is whole."


def _by_the_pool(machine: Machine, stop: Stop | None) -> bool:
    """Return whether the pool logs in to the failed host with its own key and host keys, not the user's."""
    address = machine.address
    return machine.login is None or address is None or (bool(address.command) and stop is None)


def _place(machine: Machine, stop: Stop | None) -> str:
    """Return the name of the machine, or of the failed host on the way to it."""
    if machine.login is None or machine.address is None:
        return f"machine {machine.id}"
    address = machine.address
    if address.command and not address.host:
        place = f"machine {machine.id}"
    else:
        place = address.host if address.port is None else f"{address.host} port {address.port}"
    return place if stop is None else f"{stop.place}, on the way to {place},"


async def _host_key_story(machine: Machine, stop: Stop | None, error: BaseException) -> str:
    if _by_the_pool(machine, stop):
        return f"Machine {machine.id} shows another host key than the one pinned for it, and is not trusted: {error}"
    place, advice = _place(machine, stop), "." if stop else ", or give Host(..., host_key=...)."
    if machine.host_key and stop is None:
        return (
            f"{place} shows another host key than the one that Host(..., host_key=...) gives. Either that is of "
            "another host, or somebody answers in its place: compare it with the host's own "
            "/etc/ssh/ssh_host_*_key.pub."
        )
    stop = stop or (await _way(machine))[-1]
    if "revoked" in str(error):
        return (
            f"{place} shows a host key that is revoked (@revoked in known_hosts, or RevokedHostKeys), so nobody is to "
            "trust it any more: ask whoever runs the host for its new key, and use no connection to it before."
        )
    if stop.knows():
        forget = stop.known_name if stop.port == 22 else f"[{stop.known_name}]:{stop.port}"
        return (
            f"{place} shows another host key than the one you know it by. Either it was set up anew, or somebody "
            f"answers in its place: ask whoever runs it, and then forget the old key with `ssh-keygen -R '{forget}'`."
        )
    port = "" if stop.port == 22 else f"-p {stop.port} "
    return (
        f"The host key of {place} is not known here, so it is not trusted: log in once with "
        f"`ssh {port}{stop.host}`{advice}"
    )


async def _login_story(machine: Machine, stop: Stop | None, error: BaseException) -> str:
    if _by_the_pool(machine, stop):
        return f"Machine {machine.id} does not accept this pool's key: {error}"
    assert machine.login is not None
    way = await _way(machine)
    place, stop = _place(machine, stop), stop or way[-1]
    # only the first host on the way can be reached directly, to ask for its login methods
    methods = await _methods(stop) if stop.place == way[0].place else ()
    who = f"{stop.options.username}@{place}"
    if methods and "publickey" not in methods:
        return (
            f"{who} does not take keys, only {' or '.join(methods)}: have `PubkeyAuthentication` turned on there. "
            "Outrider never asks for a password."
        )
    used = ", ".join(machine.login.keys) or "your agent's keys and those in ~/.ssh"
    skipped = f" Not used: {'; '.join(stop.skipped)}." if stop.skipped else ""
    port = "" if stop.port == 22 else f"-p {stop.port} "
    key = f"-i {shlex.quote(machine.login.keys[0])} " if machine.login.keys else ""
    jump = f"-o ProxyJump={machine.login.jump} " if machine.login.jump and stop is way[-1] else ""
    copy = f"ssh-copy-id {key}{jump}{port}{shlex.quote(f'{stop.options.username}@{stop.host}')}"
    return f"{who} accepts none of {used}: add the public key there with `{copy}`, or give SSH(user=, key=).{skipped}"


async def _methods(stop: Stop) -> Sequence[str]:
    try:
        async with asyncio.timeout(ASK_METHODS_S):
            return await asyncssh.get_server_auth_methods(
                stop.host, stop.port, username=stop.options.username, config=None
            )
    except (OSError, asyncssh.Error, TimeoutError):
        return ()
