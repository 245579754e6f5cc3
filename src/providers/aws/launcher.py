"""Launches of a pool on EC2: `EC2Launcher`, an implementation of `providers.cloud.port.Launcher`, and `make_plan`.

`RecordedApi` records each creation in the journal before its request. `Templates` creates a pool's launch templates,
one per `Shape` (the properties of a machine without its number and zone), and its placement group, on first use.

RECORDED-3: everything that is created has its intent's token among its tags from the first moment.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest
from ..cloud import offers, recorder
from ..cloud.caching import OncePerKey, Shared
from ..cloud.calls import AGAIN_S, CallRefused
from ..cloud.labels import LAUNCH, labels_of, name_of
from ..cloud.machine_start import LEASE, host_key, user_data
from ..cloud.offers import Cooldowns, Offer
from ..cloud.port import Answer, Created, Order, Plan
from ..cloud.recorder import FLEET, Recorder
from ..errors import BadRequest, ProviderError
from ..shared.side_by_side import all_of, each_of
from . import catalogue, cloud, launch, network, tags
from .api import Api
from .catalogue import VENDOR
from .errors import Failure, translate
from .launch import LaunchTemplate, Refusal, Shape

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .launch import Ami
    from .network import Network


LAG_S = 15.0  # seconds after which every part of EC2 has seen a new resource


class AWSOptions(Protocol):
    """The options of `AWS` that a launch reads."""

    @property
    def ami(self) -> str | None: ...

    @property
    def user(self) -> str | None: ...

    @property
    def vpc(self) -> str | None: ...

    @property
    def subnets(self) -> Collection[str] | None: ...

    @property
    def security_groups(self) -> Collection[str] | None: ...

    @property
    def instance_profile(self) -> str | None: ...

    @property
    def instance_types(self) -> Collection[str] | None: ...

    @property
    def zones(self) -> Collection[str] | None: ...

    @property
    def address(self) -> Literal["public", "private"]: ...

    @property
    def ssh_from(self) -> str | Sequence[str]: ...

    @property
    def rebalance(self) -> bool: ...

    @property
    def tags(self) -> Mapping[str, str] | tuple[tuple[str, str], ...] | None: ...

    @property
    def public(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EC2Plan(Plan):
    """A plan for one region. ``together``: the machines go into one placement group."""

    network: Network
    together: bool


@dataclass(slots=True, kw_only=True)
class FleetOrder(Order):
    """One CreateFleet call."""

    body: dict[str, Any]
    of: dict[Offer, LaunchTemplate]
    subnets: Mapping[str, str]


class EC2Launcher:
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: AWSOptions, pool: str, api: RecordedApi, tasks: TaskGroup) -> None:
        self._provider, self._api = provider, api
        self._notices = ("aws", "aws-rebalance") if provider.rebalance else ("aws",)
        self._labels = labels_of(pool, dict(provider.tags or ()))
        self._network = Shared(tasks, partial(self._prepared, efa=False))
        self._efa_network = Shared(tasks, partial(self._prepared, efa=True))
        self._image = images_of(provider, api)
        self._templates = Templates(api, pool, self._labels)

    def start(self) -> None:
        self._network.start()

    async def stop(self) -> None:
        await self._network.stop()
        await self._efa_network.stop()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> EC2Plan:
        provider, network, image = self._provider, self._network.get, self._image
        return await make_plan(provider, self._api, request, cooldowns, living, find_network=network, find_image=image)

    async def order(self, plan: EC2Plan, chosen: Sequence[Offer], count: int) -> FleetOrder:
        cluster = await self._templates.cluster() if plan.together else ""
        shapes = {offer: await self._shape(plan, offer, cluster) for offer in chosen}
        templates = {shape: await self._templates.of(shape) for shape in dict.fromkeys(shapes.values())}
        of = {offer: templates[shape] for offer, shape in shapes.items()}
        token, subnets = uuid4().hex, plan.network.subnets
        lots = [(each, [offer for offer in chosen if of[offer] is each]) for each in templates.values()]
        body = launch.fleet(
            lots, count, token=token, subnets=subnets, labels=self._labels, max_usd=plan.request.max_hourly_cost
        )
        return FleetOrder(
            token=token,
            offers=list(of),
            count=count,
            hourly_usd=max(offer.hourly_usd + each.shape.hourly_usd for offer, each in of.items()),
            at=anyio.current_time(),
            body=body,
            of=of,
            subnets=subnets,
        )

    async def create(self, order: FleetOrder) -> Answer:
        answer = await self._api.call("create_fleet", timeout_s=recorder.FLEET_S, **order.body)
        order.carried_out = True
        if machines_in(answer) is None:
            answer = await self._read_again(answer["FleetId"], order.token)
        heard = launch.read(answer, order.offers, order.subnets)
        machines = [
            Created(
                launch.machine(
                    name, offer, order.of[offer], region=self._api.region, notices=self._notices, lease=LEASE
                ),
                offer,
                order.of[offer].shape.ami.user,
            )
            for name, offer in heard.machines
        ]
        return Answer(machines, [(refusal.offers, self._refused(refusal)) for refusal in heard.refusals])

    def is_unknown_yet(self, error: ProviderError) -> bool:
        ours = ("InvalidGroup.", "InvalidLaunchTemplate", "InvalidPlacementGroup.", "InvalidSecurityGroupID.")
        return error.code.startswith(ours)

    def forget(self, order: FleetOrder) -> None:
        self._templates.forget(order.of.values())

    async def _shape(self, plan: EC2Plan, offer: Offer, cluster: str) -> Shape:
        """Return the `Shape` (the contents of the launch template) of this offer's machines.

        ``cluster``: the name of their placement group, or "".
        """
        request, provider = plan.request, self._provider
        cards = launch.cards(offer, together=plan.together, public=provider.public)
        place = await self._efa_network.get() if cards else plan.network
        return Shape(
            ami=await self._image(request, offer.type.architecture),
            market=offer.market,
            disk_gb=request.disk_gb,
            client_key=request.client_key,
            lease_s=request.lease_s,
            max_lifetime_s=request.max_lifetime_s,
            groups=tuple(provider.security_groups or (place.group,)),
            public=provider.public,
            profile=provider.instance_profile or "",
            cluster=cluster,
            cards=cards,
        )

    async def _prepared(self, *, efa: bool) -> Network:
        """Return the pool's network, and create its security group if it is missing. ``efa``: for machines with EFA
        interfaces.
        """
        provider = self._provider
        return await network.prepare(
            self._api,
            await self._api.recorder.claim(),
            self._labels,
            vpc=provider.vpc,
            subnets=provider.subnets,
            zones=provider.zones,
            security_groups=provider.security_groups,
            address=provider.address,
            ssh_from=provider.ssh_from,
            efa=efa,
        )

    async def _read_again(self, fleet: str, token: str) -> dict[str, Any]:
        """Query the machines of a fleet, because a repeated CreateFleet may return only the fleet's id."""
        answer = await self._api.call("describe_fleets", lag_s=LAG_S, FleetIds=[fleet])
        for described in answer.get("Fleets") or ():
            ids = machines_in(described)
            if ids is not None:
                await self._api.recorder.learnt(recorder.FLEET, token, ids)
                return dict(described)
        raise CallRefused(f"EC2 does not say which machines {fleet} has", retry_after_s=AGAIN_S, code="TimedOut")

    def _refused(self, refusal: Refusal) -> ProviderError:
        one = refusal.offers[0]
        return translate(
            Failure(
                code=refusal.code,
                message=refusal.message,
                operation="CreateFleet",
                region=self._api.region,
                instance_type=" or ".join(dict.fromkeys(offer.type.name for offer in refusal.offers)),
                zone=one.zone if len(refusal.offers) == 1 else "",
                spot=one.market == "spot",
            )
        )


# --- plans ------------------------------------------------------------------------------------------------------------


async def make_plan(
    provider: AWSOptions,
    api: Api,
    request: LaunchRequest,
    cooldowns: Cooldowns,
    living: Collection[tuple[str, str]],
    *,
    find_network: Callable[[], Awaitable[Network]],
    find_image: Callable[[LaunchRequest, Architecture | None], Awaitable[Ami]],
) -> EC2Plan:
    """Make a plan. ``living``: (type, zone) of the pool's machines.

    Raises:
        ProviderError: There are no offers, or the network or image is not available.
    """
    if provider.ami is not None and request.architecture is None:
        request = replace(request, architecture=(await find_image(request, None)).architecture)
    architectures: tuple[Architecture, ...] = (request.architecture,) if request.architecture else ("x86_64", "arm64")

    async def extras_usd(architecture: Architecture) -> float | None:
        try:
            ami = await find_image(request, architecture)
        except BadRequest:  # the image is missing; an offer that needs it raises this error later
            return None
        return launch.extras_usd(ami, request.disk_gb, public=provider.public)

    place, stock, costs = await all_of(
        find_network,
        partial(catalogue.load, api, request, instance_types=provider.instance_types),
        partial(each_of, architectures, extras_usd),
    )
    pairs = zip(architectures, costs, strict=True)
    extras: dict[Architecture, float] = {each: usd for each, usd in pairs if usd is not None}
    together = launch.is_together(request)
    rounds = offers.choose(
        request,
        stock,
        cooldowns,
        anyio.current_time(),
        instance_types=provider.instance_types,
        zones=place.subnets.keys(),
        together=together,
        extras_usd=extras,
    )
    chosen = offers.in_one_place(rounds, living) if together else rounds
    return EC2Plan(request, chosen, extras, api.region, network=place, together=together)


def images_of(provider: AWSOptions, api: Api) -> Callable[[LaunchRequest, Architecture | None], Awaitable[Ami]]:
    """Return the finder of a pool's images, each found on first use. The user's own image decides its architecture."""

    async def find(key: tuple[Architecture | None, bool]) -> Ami:
        architecture, accelerator = key
        return await launch.find_image(
            api, architecture=architecture, accelerator=accelerator, ami=provider.ami, user=provider.user
        )

    async def image_for(request: LaunchRequest, architecture: Architecture | None) -> Ami:
        return await once.get((None if provider.ami is not None else architecture, request.accelerator is not None))

    once = OncePerKey(find)
    return image_for


# --- launch templates -------------------------------------------------------------------------------------------------


class Templates:
    """The pool's launch templates: one for each `Shape` (the contents of a template), created on first use.

    Machines of one template start with the same host key. The pool replaces each machine's host key when it first
    connects, because anyone who can read the template's user data knows the initial key.
    """

    def __init__(self, api: RecordedApi, pool: str, labels: Mapping[str, str]) -> None:
        self._api, self._labels = api, labels
        self._name = name_of(pool)
        self._templates = OncePerKey(self._make)
        self._clusters = OncePerKey(self._make_cluster)

    async def of(self, shape: Shape) -> LaunchTemplate:
        """Return the launch template with the contents ``shape``; create it on first use.

        Raises:
            ProviderError: The template could not be created.
        """
        return await self._templates.get(shape)

    def forget(self, templates: Iterable[LaunchTemplate]) -> None:
        """Drop cached templates that no longer exist in EC2."""
        for template in templates:
            self._templates.forget(template.shape, template)

    async def cluster(self) -> str:
        """Return the name of the pool's placement group."""
        return await self._clusters.get(self._name)

    async def _make(self, shape: Shape) -> LaunchTemplate:
        key, token = host_key(), uuid4().hex
        script = user_data(
            VENDOR,
            host_key=key,
            client_key=shape.client_key,
            user=shape.ami.user,
            lease_s=shape.lease_s,
            max_lifetime_s=shape.max_lifetime_s,
        )
        name = f"{self._name}-{token[:8]}"
        arguments = launch.template(shape, name=name, token=token, user_data=script, labels=self._labels)
        created = await self._api.call("create_launch_template", **arguments)
        return LaunchTemplate(created["LaunchTemplate"]["LaunchTemplateId"], shape, key.public)

    async def _make_cluster(self, name: str) -> str:
        """Create the pool's placement group, and return its name.

        If a group that is not the pool's has the name ``name``, the pool's group gets another name.
        """
        if await self._makes_cluster(name) or await self._has_cluster(name):
            return name
        other = f"{name}-{uuid4().hex[:8]}"
        await self._makes_cluster(other)  # if that group exists, an earlier try of this call created it
        return other

    async def _makes_cluster(self, name: str) -> bool:
        """Create a placement group; return False if one of that name exists."""
        try:
            await self._api.call(
                "create_placement_group",
                idempotent=True,  # names are unique in a region: a second group is refused
                GroupName=name,
                Strategy="cluster",
                TagSpecifications=[tags.specification("placement-group", self._labels)],
            )
        except ProviderError as error:
            if error.code != "InvalidPlacementGroup.Duplicate":
                raise
            return False
        return True

    async def _has_cluster(self, name: str) -> bool:
        """Return whether the existing placement group ``name`` is the pool's.

        Then it was created by a try whose answer was lost, or by an earlier owner of the pool.
        """
        claim = await self._api.recorder.claim()
        shown = await cloud.shown_of(self._api, cloud.PLACEMENT_GROUPS, claim.pool)
        return any(each.id == name and claim.has(each) for each in shown)


# --- recorded calls ---------------------------------------------------------------------------------------------------


def machines_in(answer: Mapping[str, Any]) -> list[str] | None:
    """Return the machines in CreateFleet's answer. None: the answer to a repeated call has only the fleet's id."""
    if not (answer.get("Instances") or answer.get("Errors")):
        return None
    return [machine for group in answer.get("Instances") or () for machine in group.get("InstanceIds") or ()]


_MAKES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], list[str] | None]]] = {
    "create_fleet": (FLEET, machines_in),
    "create_launch_template": ("launch-template", lambda answer: [answer["LaunchTemplate"]["LaunchTemplateName"]]),
    "create_placement_group": ("placement-group", lambda answer: [answer["PlacementGroup"]["GroupName"]]),
    "create_security_group": ("security-group", lambda answer: [answer["GroupId"]]),
}


class RecordedApi(Api):
    """An `Api` that can create resources only if it has a recorder."""

    recorder: Recorder

    async def call(self, operation: str, /, **parameters: Any) -> dict[str, Any]:
        """Call AWS like `Api.call`. A create call is recorded in the journal first, and shielded from cancellation.

        Raises:
            JournalError: The intent could not be recorded, so nothing was created.
            ProviderError: As in `Api.call`.
        """
        if not operation.startswith("create_"):
            return await Api.call(self, operation, **parameters)
        kind, ids_in = _MAKES[operation]
        token = str(parameters.get("ClientToken") or uuid4().hex)
        count = (parameters.get("TargetCapacitySpecification") or {}).get("TotalTargetCapacity")
        # Once this many machines are listed, no others can appear.
        facts = {} if count is None else {"count": str(count)}
        arguments = {**parameters, "TagSpecifications": _with_token(parameters.get("TagSpecifications", ()), token)}
        return await self.recorder.create(kind, token, facts, partial(Api.call, self, operation, **arguments), ids_in)


def _with_token(specifications: Iterable[Mapping[str, Any]], token: str) -> list[dict[str, Any]]:
    label = {"Key": LAUNCH, "Value": token}
    return [
        {**each, "Tags": [*(tag for tag in each["Tags"] if tag["Key"] != LAUNCH), label]} for each in specifications
    ]
