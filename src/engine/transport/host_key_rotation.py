"""The replacement of a machine's first host key by a key that is made on the machine and never leaves it.

The first key is in the machine's launch data, which others may be able to read. Rotation first makes and reports the
new key, then puts it in place: if the connection is lost in between, the next connection sees one of two pinned keys.
"""

from __future__ import annotations

from ...providers.base import Machine
from ..api.errors import BootstrapError
from ..image.commands import CommandResult, CommandRunner

# The scripts run as root, directly or by sudo. sh reads them on stdin, so they need no quoting for a login shell. Where
# systemd starts one sshd for each connection (socket activation), sshd need not be reloaded.
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


async def make_host_key(shell: CommandRunner, machine: Machine) -> str:
    """Make a new key on the machine, not in use yet, and return its public part. Raise a BootstrapError on failure."""
    ended = await _as_root(shell, _MAKE)
    kind, *rest = ended.stdout.decode(errors="replace").split()[:2] or [""]
    if ended.status != 0 or kind != "ssh-ed25519" or not rest:
        raise _failed("a new host key could not be made", ended, machine)
    return f"{kind} {rest[0]}"


async def use_host_key(shell: CommandRunner, machine: Machine) -> None:
    """Put the new key in use for all later connections. Raise a BootstrapError on failure."""
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
