"""A route to a machine that has no executor yet: bootstrap the machine, over any kind of connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...actors.events import NodePreparing
from ...actors.interfaces import NodeId
from ...providers.base import Machine
from ..api.errors import BootstrapError
from ..node.bridge import BEGINS
from .connection_settings import ConnectionSettings
from .lease_renewal import LeaseRenewal
from .route import Route

if TYPE_CHECKING:
    from ..image.bootstrap import Bootstrapped, Phase
    from ..image.commands import CommandRunner


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
