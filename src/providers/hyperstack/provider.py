"""The provider `Hyperstack`: machines of NexGen Cloud's Hyperstack."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineOffer
from ..cloud.addresses import reached_by
from ..cloud.provider import CloudProvider, set_all
from ..errors import UnknownOption
from ..shared.option_names import checking_options
from ..shared.paths import StrPath

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import HyperstackCloud, HyperstackLauncher, HyperstackPlan


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, kw_only=True)
class Hyperstack(CloudProvider["HyperstackCloud"]):
    """Machines of Hyperstack, which are deleted when the pool ends. Needs ``pip install 'outrider[hyperstack]'``.

    Args:
        key_file: A file with the API key. Default: the variable ``HYPERSTACK_API_KEY`` holds the key.
        environments: The names of the environments to launch in. All machines of a pool are in one of them. Default:
            all of the account.
        instance_types: The names of flavors. Default: all.
        image: The name of an image. Default: the newest Ubuntu with NVIDIA's driver.
        ssh_from: The addresses that may connect by SSH, such as ``"203.0.113.0/24"``. ``"auto"``: the address of this
            computer.
        endpoint_url: The address of another service with Hyperstack's interface.

    Raises:
        ValueError: An option has an invalid value.
        UnknownOption: The option does not exist.
    """

    key_file: StrPath | None = None
    environments: Collection[str] | None = None
    instance_types: Collection[str] | None = None
    image: str | None = None
    ssh_from: str | Sequence[str] = "auto"
    endpoint_url: str | None = None

    name = "hyperstack"

    def __post_init__(self) -> None:
        ssh_from = reached_by("Hyperstack", "public", self.ssh_from)
        set_all(self, {"ssh_from": ssh_from}, lists=("environments", "instance_types"))

    def _reach(self) -> AbstractAsyncContextManager[HyperstackCloud]:
        from ..cloud.account import place_of
        from .cloud import reach

        return reach(place_of(self.key_file, self.endpoint_url))

    async def _first_plan(self, cloud: HyperstackCloud, request: LaunchRequest, cooldowns: Cooldowns) -> HyperstackPlan:
        from .cloud import planned

        return await planned(cloud.api, self, request, cooldowns, ())

    def _launcher(self, cloud: HyperstackCloud, recorder: Recorder, tasks: TaskGroup) -> HyperstackLauncher:  # noqa: ARG002
        from .cloud import HyperstackLauncher

        return HyperstackLauncher(cloud, self, recorder)

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:
        from .cloud import HyperstackPlan

        assert isinstance(plan, HyperstackPlan)
        return replace(offer, region=plan.regions[offer.place])
