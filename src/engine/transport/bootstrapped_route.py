"""A route to a machine that does not run Outrider yet: install and start the executor, over any kind of connection.

The executor is Outrider's process on the machine. A cloud machine ends itself when its lease is not renewed in time. As
the installation of an image may take longer, the lease is checked at the first contact, and renewed until the executor
renews it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ...actors.events import NodePreparing
from ...actors.interfaces import ConnectFailed, NodeId
from ...providers.base import Machine
from ..api.errors import BootstrapError
from ..image.commands import CommandRunner
from ..node.bridge import BEGINS
from .connection_settings import ConnectionSettings
from .route import Route

if TYPE_CHECKING:
    from ..image.bootstrap import Bootstrapped, Phase


RENEWALS = 4  # renewals during the time of one lease, so that some may fail
# seconds between renewals, at most: a machine left by a dead client may have a shorter lease than this pool's
MOST_S = 15.0
# seconds to wait for the result of the lease check after the bootstrap; as a rule, the check ends during the bootstrap
CHECK_S = 10.0

# The machine creates the lease file when it arms the lease, and detects a renewal by the file's inode and time. The
# script's argument is the file's path.
CHECK_LEASE = """\
seen() { stat -c '%i %y' -- "$1"; }
before=$(seen "$1") || exit 1
touch -c -- "$1" && [ "$(seen "$1")" != "$before" ] && exit 0
sleep 0.1
touch -c -- "$1" && [ "$(seen "$1")" != "$before" ]"""

T = TypeVar("T")


class LeaseRenewal:
    """The renewal of a lease: touches the lease file ``file`` on the machine at once, and repeatedly until `close`.

    A failed renewal is tried again. It is not reported: other work on the same connection fails too, and reports the
    error. ``checked``: check whether the machine detects the first touch. LEASE-1: a machine that cannot end itself is
    not used.
    """

    def __init__(self, shell: CommandRunner, file: str, lease_s: float, *, checked: bool) -> None:
        self._shell, self._file, self._every_s = shell, file, min(lease_s / RENEWALS, MOST_S)
        self._armed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if not checked:
            self._armed.set_result(True)
        self._task = asyncio.ensure_future(self._run())

    def close(self) -> None:
        self._task.cancel()

    async def during(self, work: Coroutine[Any, Any, T], machine: str) -> T:
        """Return the result of ``work``.

        If the machine would not end itself when its lease expires (the lease is not armed), cancel the work and refuse
        the machine: it could outlive its client.

        Raises:
            ConnectFailed: the lease is not armed.
            TimeoutError: the state of the lease could not be read.
        """
        doing = asyncio.ensure_future(work)
        try:
            either: list[asyncio.Future[Any]] = [doing, self._armed]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not self._armed.done():
                doing.result()  # if both the work and the lease fail, raise the error of the work
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
                doing.exception()  # mark the error as retrieved, so that asyncio does not log it

    async def _run(self) -> None:
        while True:
            with suppress(OSError):  # OSError includes TimeoutError
                async with asyncio.timeout(self._every_s):
                    if self._armed.done():
                        await self._shell.run(["touch", "-c", "--", self._file])
                    else:
                        ended = await self._shell.run(["sh", "-c", CHECK_LEASE, "outrider-lease", self._file])
                        if ended.status is not None:  # the status is None if the command was killed
                            self._armed.set_result(ended.status == 0)
            await asyncio.sleep(self._every_s)


class BootstrappedRoute(Route):
    def __init__(self, node: NodeId, machine: Machine, settings: ConnectionSettings) -> None:
        super().__init__(machine)
        self._node, self._settings = node, settings
        self._executor: Bootstrapped | None = None
        self._renewal: LeaseRenewal | None = None  # renews the machine's lease until the executor does so

    @property
    def bootstrapped(self) -> bool:
        return self._executor is not None

    def greeted(self) -> None:
        if self._renewal is not None:
            self._renewal.close()
            self._renewal = None

    def forget(self) -> None:
        self._executor = None

    def _renew_lease(self, shell: CommandRunner) -> None:
        if self._machine.lease:
            checked = self._executor is None
            self._renewal = LeaseRenewal(shell, self._machine.lease, self._settings.lease_s, checked=checked)

    async def _bootstrap(self, shell: CommandRunner) -> bool:
        """Install the image and start an executor on the machine. Return False if an earlier call has done so.

        Raises:
            BootstrapError: the bootstrap failed; the error names the machine.
        """
        if self._executor is not None:
            return False
        async with self._settings.bootstraps:
            bootstrap = self._bootstrapped(shell)
            if self._renewal is not None:  # check and renew the lease during the bootstrap: this takes no extra time
                bootstrap = self._renewal.during(bootstrap, self._machine.id)
            self._executor = await bootstrap
        return True

    async def _bootstrapped(self, shell: CommandRunner) -> Bootstrapped:
        from ..image.bootstrap import bootstrap  # pools on this computer do not need this import

        settings, machine = self._settings, self._machine
        try:
            return await bootstrap(
                shell,
                await settings.image(),
                pool=settings.pool,
                machine=machine.id.rpartition("/")[2],
                node=f"{settings.turn}{self._node}",
                address=machine.private_address or None,
                lease_s=settings.lease_s,
                lease_file=machine.lease,
                progress=self._progress,
            )
        except BootstrapError as error:
            raise error.at(machine.id.rpartition("/")[2], self._node) from error.__cause__

    def _progress(self, phase: Phase) -> None:
        took_s = phase.seconds if phase.state == "finished" else None
        self._settings.observe(NodePreparing(self._node, phase.name, phase.text, took_s))

    def _bridge(self, to: Sequence[str]) -> tuple[str, ...]:
        """Return the command that connects its standard streams to a socket on the machine."""
        executor = self._executor
        assert executor is not None, "only machines that were bootstrapped have bridges"
        return (executor.python, "-I", executor.runtime, "bridge", *to)


class BridgeOutput:
    """A filter for a bridge's output: drops what a login shell prints before the bridge starts."""

    def __init__(self) -> None:
        self._skipped: bytearray | None = bytearray()  # None: the bridge has started

    @property
    def has_begun(self) -> bool:
        return self._skipped is None

    def begun(self, data: bytes) -> bytes:
        """Return the part of ``data`` that comes from the socket: without what the login shell has printed."""
        if self._skipped is None:
            return data
        self._skipped += data
        before, begins, rest = bytes(self._skipped).partition(BEGINS)
        if begins:
            self._skipped = None
        else:
            del self._skipped[: max(0, len(before) - len(BEGINS))]
        return rest
