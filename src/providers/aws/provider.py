"""`AWS`: machines of Amazon EC2, spot and on demand, that end with their pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest
from ..cloud.options import set_all
from ..cloud.options import tags as checked_tags
from ..cloud.provider import CloudProvider
from ..errors import UnknownOption
from ..option_names import checking_options

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.cooldowns import Cooldowns
    from ..cloud.recorder import Recorder
    from .cloud import EC2Cloud
    from .launcher import EC2Launcher, EC2Plan


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True)
class AWS(CloudProvider["EC2Cloud"]):
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
        return self.address == "public"

    @asynccontextmanager
    async def _reach(self) -> AsyncIterator[EC2Cloud]:
        from .cloud import EC2Cloud
        from .recorded import RecordedApi

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
        from .launcher import EC2Launcher
        from .recorded import RecordedApi

        assert isinstance(cloud.api, RecordedApi)
        cloud.api.recorder = recorder
        return EC2Launcher(self, recorder.pool, cloud.api, tasks)
