"""Containers on some hosts as a cloud, behind the port of `providers.cloud`: found by their labels, and removed.

Docker and Podman say at once what there is, so a container that is not listed has ended. A host that does not answer
says nothing of its containers; they end by their lease.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
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
    from .provider import Containers

VENDOR = Vendor(name="Containers", service="the container runtime")
Listed = Mapping[Runtime, list[Container] | ProviderError]  # why a host did not say what it has
_STATES: Mapping[str, State] = {
    "created": "pending",
    "configured": "pending",
    "initialized": "pending",
    "running": "running",
    "paused": "running",
    "restarting": "running",
    "stopping": "stopping",
    "stopped": "stopped",
    "exited": "stopped",
    "dead": "stopped",
    "removing": "shutting-down",
}


@asynccontextmanager
async def reach(provider: Containers) -> AsyncIterator[ContainerCloud]:
    """Open the way to a provider's hosts. Nothing is connected to before it is asked."""
    hosts, places, argv = provider.hosts or ("",), provider.places or (None,), tuple(provider.runtime)
    async with opened_commands(provider.places) as found:
        runtimes = [Runtime(*each, argv) for each in zip(hosts, places, found, strict=True)]
        yield ContainerCloud(runtimes, provider.journal_place)


class ContainerCloud:
    """Implements `port.Cloud`. A host may have both runtimes; a pool uses one of each host."""

    def __init__(self, runtimes: Sequence[Runtime], place: Mapping[str, str]) -> None:
        self.runtimes = tuple(runtimes)
        self.place = place
        self.lease_s: float | None = None  # the longest of any container that this process has started; None: unknown
        self.used: set[str] | None = None  # hosts on which this pool may have containers; None: any
        self._heard: dict[str, float] = {}  # by host: when it last answered
        self._opened_at = anyio.current_time()

    vendor = VENDOR
    end_at_most = 100
    leftovers: Sequence[Leftover] = ()

    def where(self, place: Mapping[str, str]) -> str:
        return place.get("hosts") or place.get("on", "")

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        """See `port.Cloud.describe`. Of a host that does not answer nothing is said, but at a pool's end that is an
        error until its containers have ended by their lease. At an adoption it is none: they are left to that lease.
        """
        answers = await self.listed(f"{labels.POOL}={pool}")
        failed = {runtime.host: each for runtime, each in answers.items() if isinstance(each, ProviderError)}
        quiet = {host: error for host, error in failed.items() if self._may_have_some(host)}
        errors = list(quiet.values() if of is not None else failed.values())
        if errors and (of is not None or len(errors) == len(answers)):
            raise errors[0]
        if self.used is not None:
            self.used.update(map(host_of, also))
        listed = [read(name, each) for name, each in found_in(answers)]
        views = [each.view for each in listed if of is None or of.has(each.whose)]
        shown = {view.id for view in views}
        return views + [_ended(each) for each in also if each not in shown and host_of(each) not in quiet]

    async def listed(self, label: str) -> Listed:
        """Return the containers with a label."""
        answers = await answers_of(self.runtimes, lambda each: each.containers(label))
        now = anyio.current_time()
        self._heard |= {each.host: now for each, found in answers.items() if not isinstance(found, ProviderError)}
        return answers

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """Remove containers, confirmed: on every host that answers, also where another one does not."""
        names = {each: [name_of(one) for one in machines if host_of(one) == each.host] for each in self.runtimes}
        asked = [each for each in self.runtimes if names[each]]
        answers = await answers_of(asked, lambda each: each.remove(names[each]))
        for error in answers.values():
            if error is not None:
                raise error
        return [_ended(one) for one in machines if host_of(one) in {each.host for each in asked}]

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002 (to remove none is no error)
        return False

    def _may_have_some(self, host: str) -> bool:
        """Return whether a host that does not answer may have containers of the pool, whose lease lasts."""
        if self.used is not None and host not in self.used:
            return False
        quiet_s = anyio.current_time() - self._heard.get(host, self._opened_at)
        return self.lease_s is None or quiet_s <= self.lease_s + LEASE_MORE_S


def found_in(answers: Listed) -> Iterator[tuple[MachineId, Container]]:
    """Yield the containers of the hosts that have answered, each with its machine's id."""
    for runtime, found in answers.items():
        for each in () if isinstance(found, ProviderError) else found:
            yield machine_id(runtime.host, each.name), each


def machine_id(host: str, name: str) -> MachineId:
    return MachineId(f"{host}/{name}" if host else name)


def host_of(machine: str) -> str:
    return machine.rpartition("/")[0]


def name_of(machine: str) -> str:
    return machine.rpartition("/")[2]


def read(name: MachineId, container: Container) -> ListedMachine:
    """A container as a machine."""
    state = _STATES.get(container.state, "running")
    if container.oom:
        why = "it ran out of memory and was killed by the kernel"
    else:
        why = f"its first process has ended with status {container.exit_status}"
    return ListedMachine(
        labels.thing(name, container.labels),
        state,
        status=container.state,
        kind=container.image,
        zone=host_of(name),
        market="",
        launched_at=container.created_at,
        hourly_usd=0.0,
        private=container.address,
        message=why if state == "stopped" else "",
    )


def _ended(name: str) -> InstanceView:
    return InstanceView(MachineId(name), "terminated", message="the container has ended, or somebody has removed it")
