"""`AWS`: machines of Amazon EC2, spot and on demand, that end with their pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...lazy_dataclass import dataclass
from ..base import EntryPoints, LaunchRequest, MachineOffer
from ..cloud.options import Several, set_all, several
from ..cloud.options import tags as checked_tags
from ..errors import UnknownOption
from ..option_names import checking_options

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.fleet import CloudFleet
    from ..cloud.recorder import Recorder
    from .launcher import FleetOrder
    from .plan import EC2Plan

    AWSFleet = CloudFleet[EC2Plan, FleetOrder]


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, init=False)
class AWS:
    """Nodes on Amazon EC2, in one region.

    ``region``, ``profile``: by default those of the AWS command line (``AWS_REGION``, ``AWS_PROFILE``, ``~/.aws``),
    which also has the credentials. ``ami``: an AMI's id or the name of an SSM parameter with one; by default a current
    Ubuntu, with NVIDIA's driver where there is a GPU. ``user``: who logs in, by default derived from the image.
    ``vpc``, ``subnets``: by default those of the default VPC. ``security_groups``: by default one that the pool makes,
    open to ``ssh_from`` on port 22 only: CIDRs, or ``"auto"`` for this computer's address. ``instance_profile``: the
    role that tasks may use, by name or ARN. ``instance_types``, ``zones``: use only these. ``address``: how the
    machines are reached; ``"private"`` gives them no public address, for clients within the VPC or a VPN, and EFA on
    all network cards. ``endpoint_url``: another cloud with EC2's interface. ``rebalance``: replace a spot machine when
    EC2 says that it is at risk, before its interruption notice. ``tags``: further tags for everything that is created.

    Machines are found by the tag ``outrider:pool``; `outrider gc` ends those that no living pool owns. Everything that
    a pool makes, such as a launch template and a security group, is removed with it.

    Raises:
        ValueError: an option can never work.
        TypeError: there is no such option.
    """

    region: str | None
    profile: str | None
    ami: str | None
    user: str | None
    vpc: str | None
    subnets: tuple[str, ...] | None
    security_groups: tuple[str, ...] | None
    instance_profile: str | None
    instance_types: tuple[str, ...] | None
    zones: tuple[str, ...] | None
    address: Literal["public", "private"]
    ssh_from: str | tuple[str, ...]
    endpoint_url: str | None
    rebalance: bool
    tags: tuple[tuple[str, str], ...]

    def __init__(
        self,
        region: str | None = None,
        *,
        profile: str | None = None,
        ami: str | None = None,
        user: str | None = None,
        vpc: str | None = None,
        subnets: Several | None = None,
        security_groups: Several | None = None,
        instance_profile: str | None = None,
        instance_types: Several | None = None,
        zones: Several | None = None,
        address: Literal["public", "private"] = "public",
        ssh_from: str | Sequence[str] = "auto",
        endpoint_url: str | None = None,
        rebalance: bool = False,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        if address not in ("public", "private"):
            raise ValueError(f"AWS(address=...) is 'public' or 'private', not {address!r}")
        given: dict[str, object] = {
            "region": region,
            "profile": profile,
            "ami": ami,
            "user": user,
            "vpc": vpc,
            "subnets": several("AWS", "subnets", subnets),
            "security_groups": several("AWS", "security_groups", security_groups),
            "instance_profile": instance_profile,
            "instance_types": several("AWS", "instance_types", instance_types),
            "zones": several("AWS", "zones", zones),
            "address": address,
            "ssh_from": ssh_from if ssh_from == "auto" else _cidrs(ssh_from),
            "endpoint_url": endpoint_url,
            "rebalance": bool(rebalance),
            "tags": _tags(tags or {}),
        }
        set_all(self, given)

    @property
    def name(self) -> str:
        return "aws"

    @property
    def local(self) -> bool:
        return False

    @property
    def outlives(self) -> bool:
        """True: the machines outlive their client for some minutes; see `CloudFleet.adopt`."""
        return True

    async def offers(self, request: LaunchRequest) -> Sequence[MachineOffer]:
        """Return what EC2 would be asked for, in that order. Nothing is created.

        Raises:
            BadRequest: there is no such machine, and which comes close; no region is known; or the extra is missing.
            ProviderError: EC2 does not answer, or refuses.
        """
        from .offer_list import offer_list

        return await offer_list(self, request)

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[AWSFleet]:  # noqa: ARG002
        """Open a fleet. Its network is prepared in the background; `launch` raises what fails there.

        Raises:
            BadRequest: no region is known, the extra ``outrider[aws]`` is not installed, or the pool has another owner.
            NotAuthorized: there is no such profile.
            JournalError: the journal cannot be written.
        """
        from ..cloud.fleet import CloudFleet
        from ..cloud.opening import open_fleet
        from .cloud import EC2Cloud
        from .launcher import EC2Launcher
        from .recorded import RecordedApi

        opened = RecordedApi.open(region=self.region, endpoint_url=self.endpoint_url, profile=self.profile)
        async with opened as api:
            assert isinstance(api, RecordedApi)
            cloud = EC2Cloud(api)

            def make(recorder: Recorder, tasks: TaskGroup) -> AWSFleet:
                api.recorder = recorder
                launcher = EC2Launcher(self, pool, api, tasks)
                return CloudFleet(cloud, launcher, recorder, tasks, public=self.address == "public")

            async with open_fleet(pool, self.name, cloud.place, make) as fleet:
                yield fleet


def _cidrs(given: str | Sequence[str]) -> tuple[str, ...]:
    from ..cloud.addresses import sources

    return sources("AWS", given)


def _tags(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    from .tags import RESERVED

    return checked_tags("AWS", given, service="EC2", reserved=RESERVED)
