"""`Lambda`: machines of Lambda's On-Demand Cloud. They end with their pool."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest
from ..cloud.provider import CloudProvider, set_all
from ..cloud.provider import tags as checked_tags
from ..errors import UnknownOption
from ..shared.option_names import checking_options
from ..shared.paths import StrPath

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import LambdaCloud, LambdaLauncher


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, kw_only=True)
class Lambda(CloudProvider["LambdaCloud"]):
    """Nodes on Lambda's On-Demand Cloud. All machines of a pool of several nodes are in one region.

    Lambda bills a machine until it is terminated. A machine whose client is gone powers itself off when its lease is
    over, but still costs money until `outrider gc` ends it.

    Args:
        key_file: A file with an API key. Default: the variable ``LAMBDA_API_KEY`` holds the key.
        regions: Use only these regions.
        instance_types: Use only these types.
        image: The id or the family of an image. Default: the newest Lambda Stack.
        file_systems: The names of persistent file systems, mounted below ``/lambda/nfs``. Each exists in one region.
        firewall_rulesets: The ids of rulesets for incoming traffic, which apply besides the account's own rules.
        tags: Further tags of machines. Keys are small letters, digits, ``-`` and ``:``.
        endpoint_url: The address of another service with Lambda's interface.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
    """

    key_file: StrPath | None = None
    regions: Collection[str] | None = None
    instance_types: Collection[str] | None = None
    image: str | None = None
    file_systems: Collection[str] | None = None
    firewall_rulesets: Collection[str] | None = None
    tags: Mapping[str, str] | tuple[tuple[str, str], ...] | None = None
    endpoint_url: str | None = None

    name = "lambda"

    def __post_init__(self) -> None:
        from ..cloud.labels import RESERVED

        tags = checked_tags(
            "Lambda",
            self.tags,
            service="Lambda",
            reserved=(RESERVED,),
            key=r"[a-z][a-z0-9:-]{1,54}",
            value="(?s:.{0,128})",
            limits="keys of 2 to 55 small letters, digits, - and :, which begin with a letter, and values of up to 128 "
            "characters",
        )
        set_all(self, {"tags": tags}, lists=("regions", "instance_types", "file_systems", "firewall_rulesets"))

    def _reach(self) -> AbstractAsyncContextManager[LambdaCloud]:
        from ..cloud.account import place_of
        from .cloud import reach

        return reach(place_of(self.key_file, self.endpoint_url))

    async def _first_plan(self, cloud: LambdaCloud, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        from .cloud import plan

        return await plan(cloud.api, self, request, cooldowns, ())

    def _launcher(self, cloud: LambdaCloud, recorder: Recorder, tasks: TaskGroup) -> LambdaLauncher:  # noqa: ARG002
        from .cloud import LambdaLauncher

        return LambdaLauncher(self, cloud, recorder)
