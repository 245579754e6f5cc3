"""Say why a machine could not be reached by SSH and what to do next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import asyncssh

from ...actors.ports import ConnectFailed
from ...providers.base import Machine
from ..api.errors import AuthError, HostKeyError
from ..api.printable import plainly
from . import login, ssh
from .connect_errors import because, refusal

ASK_METHODS_S = 5.0


async def ssh_refusal(machine: Machine, error: BaseException) -> ConnectFailed:  # noqa: PLR0911  a table
    """Do as `connect_errors.refusal`, for what `ssh.connect` raises too."""
    stop, error = None, plainly(error)
    if isinstance(error, ssh.JumpFailed) and error.__cause__ is not None:
        stop, error = error.stop, error.__cause__
    match error:
        case asyncssh.HostKeyNotVerifiable() if machine.rotate_host_key:
            # Until the cloud's first boot has put our key there, its SSH server answers with one of its own.
            return ConnectFailed(await _host_key_story(machine, stop, error))
        case asyncssh.HostKeyNotVerifiable():
            return because(HostKeyError(await _host_key_story(machine, stop, error)), systematic=machine.login is None)
        case asyncssh.PermissionDenied():
            return because(AuthError(await _login_story(machine, stop, error)), systematic=machine.login is None)
        case asyncssh.KeyImportError() | asyncssh.KeyEncryptionError():
            place = _place(machine, stop)
            story = f"a private key for {place} cannot be used: {error}. Add it to your agent with `ssh-add`."
            return because(AuthError(story))
        case TimeoutError(errno=None):
            within_s = machine.patience_s or ssh.CONNECT_S
            return ConnectFailed(f"{_place(machine, stop)} did not answer within {within_s:g} s")
        case asyncssh.ConnectionLost():
            return ConnectFailed(f"{_place(machine, stop)} closed the connection before it was logged in: {error}")
        case _:
            return refusal(machine, error, _place(machine, stop))


def _place(machine: Machine, stop: login.Stop | None = None) -> str:
    """The machine; or the host on the way to it that it is about."""
    if machine.login is None or machine.address is None:
        return f"machine {machine.id}"
    address = machine.address
    place = address.host if address.port is None else f"{address.host} port {address.port}"
    return place if stop is None else f"{stop.place}, on the way to {place},"


async def _host_key_story(machine: Machine, stop: login.Stop | None, error: BaseException) -> str:
    if machine.login is None or machine.address is None:
        return f"Machine {machine.id} shows another host key than the one pinned for it, and is not trusted: {error}"
    place, given = _place(machine, stop), "." if stop else ", or give Host(..., host_key=...)."
    stop = stop or (await login.stops(machine.address, machine.login, machine.host_key))[-1]
    if stop.knows():
        forget = stop.host if stop.port == 22 else f"[{stop.host}]:{stop.port}"
        return (
            f"{place} shows another host key than the one you know it by. Either it was set up anew, or somebody "
            f"answers in its place: ask whoever runs it, and then forget the old key with `ssh-keygen -R '{forget}'`."
        )
    port = "" if stop.port == 22 else f"-p {stop.port} "
    return (
        f"The host key of {place} is not known here, so it is not trusted: log in once with "
        f"`ssh {port}{stop.host}`{given}"
    )


async def _login_story(machine: Machine, stop: login.Stop | None, error: BaseException) -> str:
    if machine.login is None or machine.address is None:
        return f"Machine {machine.id} does not accept this pool's key: {error}"
    stops = await login.stops(machine.address, machine.login, machine.host_key)
    place, stop = _place(machine, stop), stop or stops[-1]
    methods = await _methods(stop) if stop.place == stops[0].place else ()  # others are not reached from here
    who = f"{stop.options.username}@{place}"
    if methods and "publickey" not in methods:
        return (
            f"{who} does not take keys, only {' or '.join(methods)}: have `PubkeyAuthentication` turned on there. "
            "Outrider never asks for a password."
        )
    used = ", ".join(machine.login.keys) or "your agent's keys and those in ~/.ssh"
    return f"{who} accepts none of {used}: add the public key there with `ssh-copy-id`, or give SSH(user=, key=)."


async def _methods(stop: login.Stop) -> Sequence[str]:
    try:
        async with asyncio.timeout(ASK_METHODS_S):
            return await asyncssh.get_server_auth_methods(
                stop.host, stop.port, username=stop.options.username, config=None
            )
    except (OSError, asyncssh.Error, TimeoutError):
        return ()
