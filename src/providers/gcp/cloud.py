"""Compute Engine in one project: `GCPCloud` finds and ends machines and firewall rules, `GCPSurveyor` for `ps` and
`gc`.

`GCPCloud` implements `providers.cloud.port.Cloud`. A pool's firewall rules allow SSH from its client and all traffic
among its machines, and nothing else.

A machine's id is ``NAME.ZONE``, as in its internal host name. Compute Engine does not list deleted machines, but a list
may also lack a machine that exists: a machine has ended only if ``GET`` does not know it either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

from ..base import MachineId
from ..cloud import small_labels as labels
from ..cloud.addresses import let_in
from ..cloud.calls import unless_unknown
from ..cloud.inventory import InstanceView, ListedMachine, State, time_of
from ..cloud.labels import labels_of
from ..cloud.surveyor import CloudSurveyor
from ..cloud.teardown import leftover
from ..errors import ProviderError
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Claim, Others, Thing
from ..shared.side_by_side import each_of, side_by_side
from ..survey import FoundMachine
from .api import NOT_READY, UNKNOWN, Api
from .catalogue import CAUSES, FULL_TIME, VENDOR

if TYPE_CHECKING:
    from ..cloud.recorder import Recorder


STATES: Mapping[str, State] = {
    "PENDING": "pending", "PROVISIONING": "pending", "STAGING": "pending", "RUNNING": "running",
    "REPAIRING": "stopping", "SUSPENDING": "stopping", "SUSPENDED": "stopped", "STOPPED": "stopped",
    "TERMINATED": "stopped", "DEPROVISIONING": "shutting-down",
    # A preempted machine has one of these states between the notice and its end, and still runs. If this client itself
    # has asked to end the machine, `_explained` corrects "STOPPING".
    "PENDING_STOP": "running", "STOPPING": "running",
}  # fmt: skip
_ONE = "name,zone,status,machineType,labels,description,scheduling,creationTimestamp,networkInterfaces"
FIELDS = f"items/*/instances({_ONE}),nextPageToken"
ANY_POOL = f"labels.{labels.POOL}:*"


@asynccontextmanager
async def reach(place: Mapping[str, str], region: str = "") -> AsyncIterator[GCPCloud]:
    """Open Compute Engine in the project that ``place`` names (`Api.open`)."""
    async with Api.open(place, region) as api:
        yield GCPCloud(api)


class GCPCloud:
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 64

    def __init__(self, api: Api) -> None:
        # `place` names the project but no region, because a pool's machines are searched in all regions of the project.
        self.api, self.place = api, api.place
        self.leftovers = (
            leftover(
                FIREWALL_RULE,
                shown=partial(firewall_rules, api),
                delete=partial(delete_firewall_rule, api),
                is_unknown=lambda error: error.code in UNKNOWN,
                has_machines=True,
            ),
        )
        self._ended: set[str] = set()  # machines for which `end` was called
        self._reasons: dict[str, str] = {}

    def where(self, place: Mapping[str, str]) -> str:
        return " ".join(filter(None, (place.get("project"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        # If the caller passes no claim, it has already checked that the machines named in `also` are the pool's.
        known = also if of is None or isinstance(of, Claim) else ()
        listed, others = await instances(self.api, f"labels.{labels.POOL} = {labels.value(pool)}", known)
        views = [each.view for each in listed if of is None or of.has(each.whose)]
        views += [each.view if each else InstanceView(MachineId(name), "terminated") for name, each in others.items()]
        return [await self._explained(each) for each in views]

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        self._ended.update(machines)
        return await each_of(machines, self._end)

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002
        return False  # each call ends one machine, and `_end` already handles a machine that does not exist

    async def _end(self, machine: str) -> InstanceView:
        try:
            await self.api.call("DELETE", path_of(machine))
        except ProviderError as error:
            if error.code in UNKNOWN:
                return InstanceView(MachineId(machine), "terminated")
            if error.code not in NOT_READY:  # NOT_READY: the machine is already being deleted
                raise
        return InstanceView(MachineId(machine), "shutting-down")

    async def _explained(self, view: InstanceView) -> InstanceView:
        """Return the view of a machine with corrections.

        A machine that this process has asked to end is ending, although Compute Engine may show it as running. For a
        machine that ended without such a request, the reason is added.
        """
        if view.id in self._ended:
            return replace(view, state="shutting-down") if view.reason == "STOPPING" else view
        return view if view.lives else replace(view, reason=await self._why(view.id))

    async def _why(self, machine: str) -> str:
        """Return why a machine ended, although this process did not ask for its end.

        The reason is the type of the newest operation on the machine that `CAUSES` explains.
        """
        if machine not in self._reasons:
            name, _, zone = machine.partition(".")
            target = f'(targetLink eq ".*/instances/{name}")'
            done: list[dict[str, Any]] = []
            with suppress(ProviderError):  # without an answer, the machine's end is reported without a reason
                done = await self.api.pages(f"/zones/{zone}/operations", {"filter": target})
            for each in sorted(done, key=lambda each: each.get("insertTime", "")):
                kind = each.get("operationType", "")
                if kind in {"delete", "stop"} and each.get("user", "").startswith("system"):
                    kind = FULL_TIME  # Google's system itself ended the machine, because its maximum run time was over
                if kind in CAUSES:
                    self._reasons[machine] = kind  # the newest operation comes last, and so replaces older reasons
        return self._reasons.get(machine, "")


async def instances(
    api: Api, which: str, known: Collection[str] = ()
) -> tuple[list[ListedMachine], dict[str, ListedMachine | None]]:
    """Return two results: the machines in all zones that the filter ``which`` selects, and, by id, the ``known``
    machines that it does not select (None: that machine has ended).
    """
    listed = [read(each) for each in await api.pages("/aggregated/instances", {"filter": which, "fields": FIELDS})]
    hidden = sorted({*known}.difference(each.id for each in listed))

    async def look(machine: str) -> ListedMachine | None:
        answer = await unless_unknown(api.call("GET", path_of(machine)), *UNKNOWN)
        return None if answer is None else read(answer)

    return listed, dict(zip(hidden, await each_of(hidden, look), strict=True))


def path_of(machine: str) -> str:
    name, _, zone = machine.partition(".")
    return f"/zones/{zone}/instances/{name}"


def read(instance: Mapping[str, Any]) -> ListedMachine:
    """Convert a machine in a response to a `ListedMachine`. Its reason is Compute Engine's status, which is more
    detailed than the state.
    """
    status, zone = instance["status"], instance["zone"].rpartition("/")[2]
    first = (instance.get("networkInterfaces") or [{}])[0]
    public = [each.get("natIP") or "" for each in first.get("accessConfigs") or ()]
    spot = (instance.get("scheduling") or {}).get("provisioningModel") == "SPOT"
    return ListedMachine(
        labels.thing(f"{instance['name']}.{zone}", instance),
        STATES[status],
        status=STATES[status],
        kind=instance["machineType"].rpartition("/")[2],
        zone=zone,
        market="spot" if spot else "on-demand",
        launched_at=time_of(instance["creationTimestamp"]),
        hourly_usd=labels.fields_of(instance).get("usd") if status != "TERMINATED" else None,
        public=next(iter(public), ""),
        private=first.get("networkIP") or "",
        reason=status,
    )


# --- firewall rules ---------------------------------------------------------------------------------------------------


FIREWALL_RULE: Final = "firewall-rule"
# Priorities: the smallest number wins. The network's own rules (default-allow-ssh is open to all) have 65534 or 1000.
ALLOWED, DENIED = 900, 910


class GCPOptions(Protocol):
    """The options of `GCP` that a launch reads."""

    @property
    def image(self) -> str | None: ...

    @property
    def user(self) -> str: ...

    @property
    def network(self) -> str: ...

    @property
    def subnet(self) -> str | None: ...

    @property
    def network_tags(self) -> Collection[str] | None: ...

    @property
    def service_account(self) -> str | None: ...

    @property
    def instance_types(self) -> Collection[str] | None: ...

    @property
    def zones(self) -> Collection[str] | None: ...

    @property
    def ssh_from(self) -> str | Sequence[str]: ...

    @property
    def max_run_hours(self) -> float: ...

    @property
    def labels(self) -> Mapping[str, str] | tuple[tuple[str, str], ...]: ...

    @property
    def public(self) -> bool: ...


async def open_firewall(api: Api, provider: GCPOptions, recorder: Recorder) -> tuple[str, ...]:
    """Create the pool's firewall rules, unless the user has named tags of existing rules. Return the tags for the
    pool's machines.

    Raises:
        BadRequest: This computer's address cannot be determined.
        ProviderError: Compute Engine refused a rule, or did not respond.
    """
    if provider.network_tags is not None:
        return tuple(provider.network_tags)
    inside = provider.ssh_from == "auto" and not provider.public
    sources = await let_in("GCP", "10.0.0.0/8" if inside else provider.ssh_from, api.endpoint_url)
    tag = labels.stem(recorder.pool)
    ours = {"direction": "INGRESS", "targetTags": [tag], "network": f"global/networks/{provider.network}"}
    everything = [{"IPProtocol": "all"}]
    rules = [
        {"priority": ALLOWED, "sourceRanges": list(sources), "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]},
        {"priority": ALLOWED, "sourceTags": [tag], "allowed": everything},
        {"priority": DENIED, "sourceRanges": ["0.0.0.0/0"], "denied": everything},
    ]
    await side_by_side([partial(_make, api, recorder, {**ours, **each}) for each in rules])
    return (tag,)


async def _make(api: Api, recorder: Recorder, rule: Mapping[str, Any]) -> None:
    token = uuid4().hex
    name = f"{labels.stem(recorder.pool)}-{token[:10]}"
    body = {**rule, "name": name, "description": labels.description(labels_of(recorder.pool, {}), token)}
    ask = partial(api.carry_out, "POST", "/global/firewalls", "a firewall rule", body=body, token=token)
    await recorder.create(FIREWALL_RULE, token, {}, ask, lambda _: [name])


async def firewall_rules(api: Api, pool: str = "") -> list[Thing]:
    """Return the firewall rules whose description names ``pool``; if ``pool`` is empty, the rules of all pools."""
    named = f'name eq "{labels.stem(pool) if pool else "outrider"}-.*"'
    things = [labels.thing(each["name"], each) for each in await api.pages("/global/firewalls", {"filter": named})]
    return [each for each in things if each.pool and pool in ("", each.pool)]


async def delete_firewall_rule(api: Api, name: str) -> None:
    await api.carry_out("DELETE", f"/global/firewalls/{name}", f"the end of {name}")


# --- the surveyor, for outrider ps and gc -----------------------------------------------------------------------------


class GCPSurveyor(CloudSurveyor["GCPCloud"]):
    """Implements `survey.Surveyor`, which finds and ends machines for `outrider ps` and `outrider gc`.

    A `Place` has a project, and may have a file of credentials and an endpoint_url.
    """

    provider, mark = "gcp", "project"

    def reach(self, place: Place) -> AbstractAsyncContextManager[GCPCloud]:

        return reach(place)

    async def find(self, cloud: GCPCloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:

        # A known machine that this filter does not list has ended, or somebody has removed its labels.
        listed, others = await instances(cloud.api, ANY_POOL, known)
        machines = [each.summary for each in (*listed, *others.values()) if each is not None]
        return machines, await firewall_rules(cloud.api)
