"""`AWS`: machines of Amazon EC2, spot and on demand, that end with their pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest
from ..cloud.provider import CloudProvider, set_all
from ..cloud.provider import tags as checked_tags
from ..errors import UnknownOption
from ..shared.option_names import checking_options

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.recorder import Recorder
    from .cloud import EC2Cloud
    from .launcher import EC2Launcher, EC2Plan


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True)
class AWS(CloudProvider["EC2Cloud"]):
    """Nodes on Amazon EC2, in one region.

    A pool finds its machines by the tag ``outrider:pool``; `outrider gc` ends the machines that no living pool owns.
    Everything that a pool creates, such as a launch template and a security group, is removed with it.

    Args:
        region: The region. Default: that of the AWS command line (``AWS_REGION``, or ``~/.aws``).
        profile: The profile with the credentials. Default: that of the AWS command line (``AWS_PROFILE``, or
            ``~/.aws``).
        ami: The id of an AMI, or the name of an SSM parameter that holds one. Default: a current Ubuntu, with NVIDIA's
            driver for machines with GPUs.
        user: The login name. Default: derived from the image.
        vpc: The id of the VPC. Default: the default VPC.
        subnets: The ids of subnets. Default: those of the VPC.
        security_groups: The ids of security groups. Default: one that the pool makes, open to ``ssh_from`` on port 22
            only.
        instance_profile: The role that tasks may use, by name or ARN. Default: none.
        instance_types: Use only these types.
        zones: Use only these zones.
        address: ``"public"``, or ``"private"``: machines have no public address, for clients within the VPC or a VPN;
            then every network card has EFA.
        ssh_from: The addresses that may connect, as CIDRs. ``"auto"``: the address of this computer.
        endpoint_url: Another cloud with the interface of EC2.
        rebalance: Replace a spot machine as soon as EC2 reports a risk for it, before the interruption notice.
        tags: Further tags for everything that the pool creates.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
    """

    region: str | None = None
    _: KW_ONLY
    profile: str | None = None
    ami: str | None = None
    user: str | None = None
    vpc: str | None = None
    subnets: Collection[str] | None = None
    security_groups: Collection[str] | None = None
    instance_profile: str | None = None
    instance_types: Collection[str] | None = None
    zones: Collection[str] | None = None
    address: Literal["public", "private"] = "public"
    ssh_from: str | Sequence[str] = "auto"
    endpoint_url: str | None = None
    rebalance: bool = False
    tags: Mapping[str, str] | tuple[tuple[str, str], ...] | None = None

    name = "aws"

    def __post_init__(self) -> None:
        from ..cloud.addresses import reached_by
        from .tags import RESERVED

        checked = {
            "ssh_from": reached_by("AWS", self.address, self.ssh_from),
            "rebalance": bool(self.rebalance),
            "tags": checked_tags("AWS", self.tags, service="EC2", reserved=RESERVED),
        }
        set_all(self, checked, lists=("subnets", "security_groups", "instance_types", "zones"))

    @property
    def public(self) -> bool:
        """Return whether machines have public addresses."""
        return self.address == "public"

    @asynccontextmanager
    async def _reach(self) -> AsyncIterator[EC2Cloud]:
        from .cloud import EC2Cloud
        from .launcher import RecordedApi

        opened = RecordedApi.open(region=self.region, endpoint_url=self.endpoint_url, profile=self.profile)
        async with opened as api:
            yield EC2Cloud(api)

    async def _first_plan(self, cloud: EC2Cloud, request: LaunchRequest, cooldowns: Cooldowns) -> EC2Plan:
        from .launcher import images_of, make_plan
        from .network import look

        network = partial(look, cloud.api, self.vpc, self.subnets, zones=self.zones, public=self.public)
        image = images_of(self, cloud.api)
        return await make_plan(self, cloud.api, request, cooldowns, (), find_network=network, find_image=image)

    def _launcher(self, cloud: EC2Cloud, recorder: Recorder, tasks: TaskGroup) -> EC2Launcher:
        from .launcher import EC2Launcher, RecordedApi

        assert isinstance(cloud.api, RecordedApi)
        cloud.api.recorder = recorder
        return EC2Launcher(self, recorder.pool, cloud.api, tasks)
