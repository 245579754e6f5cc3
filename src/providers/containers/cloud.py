"""The implementation of `port.Cloud` for containers on some hosts. It finds the containers by their labels, and removes
them.

Docker and Podman list every change at once, so a container that is not listed has ended. It is unknown what runs on a
host that does not respond; the containers there end by their lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from ..base import MachineId
from ..cloud import labels
from ..cloud.end_tracker import LEASE_MORE_S
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.listed import ListedMachine
from ..cloud.port import Leftover
from ..cloud.vendor import Vendor
from ..errors import ProviderError
from ..login_host import opened_commands
from ..resource_ownership import Claim, Others
from ..side_by_side import answers_of
from .runtime import Container, Runtime

if TYPE_CHECKING:
    from .runtime import ContainersOptions

VENDOR = Vendor(name="Containers", service="the container runtime")
# All other states of a container count as running: "running", "paused", "restarting".
_STATES: Mapping[State, tuple[str, ...]] = {
    "pending": ("created", "configured", "initialized"),
    "stopping": ("stopping",),
    "stopped": ("stopped", "exited", "dead"),
    "shutting-down": ("removing",),
}


@asynccontextmanager
async def reach(provider: ContainersOptions) -> AsyncIterator[ContainerCloud]:
    """Open a provider's hosts. The connection to each host is made at its first command."""
    hosts, places, argv = provider.hosts or ("",), provider.places or (None,), tuple(provider.runtime)
    async with opened_commands(provider.places) as argvs:
        runtimes = [Runtime(*each, argv) for each in zip(hosts, places, argvs, strict=True)]
        yield ContainerCloud(runtimes, provider.journal_place)


class ContainerCloud:
    """Implements `port.Cloud`. A host may have both Docker and Podman; a pool uses only one of them on each host."""

    def __init__(self, runtimes: Sequence[Runtime], place: Mapping[str, str]) -> None:
        self.runtimes, self.place = tuple(runtimes), place
        # The longest lease (seconds) that this process has given a container; None: unknown.
        self.lease_s: float | None = None
        self.used: set[str] | None = None  # hosts on which this pool may have containers; None: any host

    vendor = VENDOR
    end_at_most = 100
    leftovers: Sequence[Leftover] = ()

    def where(self, place: Mapping[str, str]) -> str:
        return place.get("hosts") or place.get("on", "")

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        """See `port.Cloud.describe`. Containers of hosts that do not respond are left out.

        When a pool ends, such a host is an error until its containers must have ended by their lease. When machines are
        adopted (``of`` is None), it is no error, unless no host responds.
        """
        containers, failed = await self.listed(f"{labels.POOL}={pool}")
        quiet = {each.host: error for each, error in failed.items() if self._may_have_some(each)}
        errors = list((failed if of is None else quiet).values())
        if errors and (of is not None or len(failed) == len(self.runtimes)):
            raise errors[0]
        if self.used is not None:
            self.used.update(map(host_of, also))
        views = [each.view for each in map(read, containers) if of is None or of.has(each.whose)]
        shown = {view.id for view in views}
        return views + [_ended(each) for each in also if each not in shown and host_of(each) not in quiet]

    async def listed(self, label: str) -> tuple[list[Container], dict[Runtime, ProviderError]]:
        """Return the containers with a label, and, for each host that failed to list its containers, the error."""
        answers = await answers_of(self.runtimes, lambda each: each.containers(label))
        failed = {each: error for each, error in answers.items() if isinstance(error, ProviderError)}
        return [
            one for containers in answers.values() if not isinstance(containers, ProviderError) for one in containers
        ], failed

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """Remove containers, and return when they are gone. If a host does not respond, the other hosts still remove
        theirs; then its error is raised.
        """
        names = {each: [one.split("/")[-1] for one in machines if host_of(one) == each.host] for each in self.runtimes}
        runtimes = [each for each in self.runtimes if names[each]]
        answers = await answers_of(runtimes, lambda each: each.remove(names[each]))
        for error in filter(None, answers.values()):
            raise error
        return [_ended(one) for one in machines if host_of(one) in {each.host for each in runtimes}]

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002 (a missing container is not an error)
        return False

    def _may_have_some(self, runtime: Runtime) -> bool:
        """Return whether a host that does not respond may still have containers of the pool whose lease is not over."""
        if self.used is not None and runtime.host not in self.used:
            return False
        return self.lease_s is None or anyio.current_time() - runtime.heard_at <= self.lease_s + LEASE_MORE_S


def machine_id(host: str, name: str) -> MachineId:
    return MachineId(f"{host}/{name}" if host else name)


def host_of(machine: str) -> str:
    return machine.rpartition("/")[0]


def read(container: Container) -> ListedMachine:
    """Convert a container to a `ListedMachine`."""
    states: list[State] = [state for state, words in _STATES.items() if container.state in words]
    state = states[0] if states else "running"
    ended = f"its first process has ended with status {container.exit_status}"
    why = "it ran out of memory and was killed by the kernel" if container.oom else ended
    return ListedMachine(
        labels.thing(machine_id(container.host, container.name), container.labels),
        state,
        status=container.state,
        kind=container.image,
        zone=container.host,
        market="",
        launched_at=container.created_at,
        hourly_usd=0.0,
        private=container.address,
        message=why if state == "stopped" else "",
    )


def _ended(name: str) -> InstanceView:
    return InstanceView(MachineId(name), "terminated", message="the container has ended, or somebody has removed it")
