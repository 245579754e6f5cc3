"""The first contact with a machine, before an executor is spoken to: its lease is renewed, its host key replaced.

The lease is checked at the first contact, and renewed from here until the executor does that, because the image may
take longer than the lease. Whoever may read the machine's launch data has seen the first host key. The new one is made
on the machine and never leaves it. First it is made and told, then put in place: a connection that is lost between the
two finds one of two keys that are both pinned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ...actors.interfaces import ConnectFailed
from ...providers.base import Machine
from ..api.errors import BootstrapError
from ..image.commands import CommandResult, CommandRunner

RENEWALS = 4  # in the time of one lease: some may fail
CHECK_S = 10.0  # for an answer that comes before that of a bootstrap, unless tries at it fail

# The watch makes the file when it is armed, and sees a renewal by the file's inode and time. The argument is the file.
CHECK_LEASE = """\
seen() { stat -c '%i %y' -- "$1"; }
before=$(seen "$1") || exit 1
touch -c -- "$1" && [ "$(seen "$1")" != "$before" ] && exit 0
sleep 0.1
touch -c -- "$1" && [ "$(seen "$1")" != "$before" ]"""
# As root, or by sudo. Read on stdin by sh, so that no login shell has to quote it. Under systemd a socket may start a
# server for each connection: then there is nothing to reload.
_MAKE = b"""\
set -eu
umask 077
rm -f /etc/ssh/outrider_new /etc/ssh/outrider_new.pub
ssh-keygen -q -t ed25519 -N '' -C outrider -f /etc/ssh/outrider_new </dev/null
cat /etc/ssh/outrider_new.pub
"""
_PLACE = b"""\
set -eu
if [ -e /etc/ssh/outrider_new ]; then
    mv -f /etc/ssh/outrider_new.pub /etc/ssh/ssh_host_ed25519_key.pub
    mv -f /etc/ssh/outrider_new /etc/ssh/ssh_host_ed25519_key
fi
if [ -d /run/systemd/system ]; then
    systemctl reload ssh 2>/dev/null || systemctl reload sshd 2>/dev/null || true
else
    pid=$$ listener=
    while [ "$pid" -gt 1 ]; do
        read -r name </proc/"$pid"/comm
        if [ "$name" = sshd ]; then listener=$pid; fi
        pid=$(sed 's/.*) . //; s/ .*//' /proc/"$pid"/stat)
    done
    kill -HUP "${listener:?no sshd above this command}"
fi
"""

T = TypeVar("T")


class LeaseRenewal:
    """Touches ``file`` there at once, and again and again until closed. A failure is silent, and tried again: the work
    that goes over the same connection meets it too.

    ``checked``: the first time it is seen whether that does anything. LEASE-1: what cannot end itself is not used.
    """

    def __init__(self, shell: CommandRunner, file: str, lease_s: float, *, checked: bool) -> None:
        self._shell, self._file, self._every_s = shell, file, lease_s / RENEWALS
        self._armed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not checked:
            self._armed.set_result(True)
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._task.cancel()

    async def during(self, work: Coroutine[Any, Any, T], machine: str) -> T:
        """Return the result of ``work``. As soon as it is known that the lease is not armed, the work is cancelled, and
        the machine is not used: nothing would end it. A TimeoutError: it could not be seen.
        """
        doing = asyncio.ensure_future(work)
        try:
            either: list[asyncio.Future[Any]] = [doing, self._armed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._armed.done():
                doing.result()  # what went wrong there comes first
            async with asyncio.timeout(CHECK_S):
                armed = await asyncio.shield(self._armed)
            if not armed:
                raise ConnectFailed(
                    f"the lease of machine {machine} is not armed: {self._file} is not there, or touching it changes "
                    "nothing, so nothing would end the machine if this program died. It is not used. Its image has to "
                    "run cloud-init, with sh and poweroff: the machine's console output says what failed",
                    fatal=True,
                )
            return await doing
        finally:
            doing.cancel()
            await asyncio.wait([doing])
            if not doing.cancelled():
                doing.exception()  # it was told, or comes second

    async def _run(self) -> None:
        while True:
            with suppress(OSError):  # TimeoutError too
                async with asyncio.timeout(self._every_s):
                    if self._armed.done():
                        await self._shell.run(["touch", "-c", "--", self._file])
                    else:
                        ended = await self._shell.run(["sh", "-c", CHECK_LEASE, "outrider-lease", self._file])
                        if ended.status is not None:  # else it was killed
                            self._armed.set_result(ended.status == 0)
            await asyncio.sleep(self._every_s)


async def make_host_key(shell: CommandRunner, machine: Machine) -> str:
    """Make a new key on the machine, not in use yet, and return the public one, or raise a BootstrapError."""
    ended = await _as_root(shell, _MAKE)
    kind, *rest = ended.stdout.decode(errors="replace").split()[:2] or [""]
    if ended.status != 0 or kind != "ssh-ed25519" or not rest:
        raise _failed("a new host key could not be made", ended, machine)
    return f"{kind} {rest[0]}"


async def use_host_key(shell: CommandRunner, machine: Machine) -> None:
    """Have the new key answer from the next connection on, or raise a BootstrapError."""
    ended = await _as_root(shell, _PLACE)
    if ended.status != 0:
        raise _failed("the new host key could not be put in place", ended, machine)


async def _as_root(shell: CommandRunner, script: bytes) -> CommandResult:
    return await shell.run(
        ["sh", "-c", 'if [ "$(id -u)" = 0 ]; then exec sh -s; else exec sudo -n sh -s; fi'], stdin=script
    )


def _failed(reason: str, ended: CommandResult, machine: Machine) -> BootstrapError:
    log = ended.stderr.decode(errors="replace").splitlines()[-20:]
    story = "".join(f"\n  | {line}" for line in log)
    hint = "use an image whose login user is root or may use sudo without a password, with OpenSSH's server"
    return BootstrapError(
        f"machine {machine.id}: {reason} ({ended.how}). Next: {hint}.{story}",
        phase="probe",
        command="ssh-keygen",
        exit_status=ended.status,
        log=log,
        hint=hint,
        machine=str(machine.id),
    )
