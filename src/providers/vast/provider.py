"""`Vast`: machines that people rent out at Vast.ai, on demand and for bids. They end with their pool."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineOffer
from ..cloud.provider import CloudProvider, set_all, several
from ..errors import UnknownOption
from ..shared.option_names import checking_options
from ..shared.paths import StrPath

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import RentPlan, VastCloud, VastLauncher


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, kw_only=True)
class Vast(CloudProvider["VastCloud"]):
    """Nodes on Vast.ai: containers on machines with GPUs, rented from people and data centers.

    Vast.ai stops a spot machine without notice when another renter bids more: its node is lost, and the pool deletes
    it. A container whose client is gone deletes itself when its lease is over.

    Args:
        key_file: A file with an API key. Default: the variable ``VAST_API_KEY``, or the file of Vast.ai's own client.
        image: The image of the containers, as for ``docker run``. A pool's ``Image(container=...)`` comes first.
            Default: Vast.ai's own base image, with CUDA.
        regions: Codes of countries, such as ``["US", "CA"]``. Default: any.
        reliability: The lowest share of past time, from 0 to 1, in which the machine was up.
        verified: Use only machines that Vast.ai has verified.
        min_cuda: The lowest CUDA version that the machine's driver must support. None: any.
        bid: For spot machines: the factor on the lowest bid, from 1 to 10. A renter who bids more later takes the
            machine.
        endpoint_url: The address of another service with Vast.ai's interface.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
    """

    key_file: StrPath | None = None
    image: str | None = None
    regions: Collection[str] | None = None
    reliability: float = 0.95
    verified: bool = True
    min_cuda: float | None = 12.8
    bid: float = 1.1
    endpoint_url: str | None = None

    name = "vast"

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("reliability", self.reliability, 0.0, 1.0),
            ("bid", self.bid, 1.0, 10.0),
            ("min_cuda", 1.0 if self.min_cuda is None else self.min_cuda, 1.0, 100.0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise ValueError(f"Vast({name}=...) is a number from {least:g} to {most:g}, not {value!r}")
        if self.image is not None and (self.image.startswith("-") or any(c.isspace() for c in self.image)):
            raise ValueError(f"Vast(image={self.image!r}) is no image: write one as for `docker run`")
        regions = several("Vast", "regions", self.regions)
        for each in regions or ():
            if len(each) != 2 or not each.isalpha():
                raise ValueError(f"Vast(regions=[{each!r}]) takes codes of countries, with two letters, such as 'US'")
        set_all(self, {"regions": None if regions is None else tuple(dict.fromkeys(map(str.upper, regions)))})

    @property
    def containers(self) -> bool:
        """Return True: machines run the image that ``Image(container=...)`` names, if it names one."""
        return True

    def _reach(self) -> AbstractAsyncContextManager[VastCloud]:
        from ..cloud.account import place_of
        from .cloud import reach

        return reach(place_of(self.key_file, self.endpoint_url))

    async def _first_plan(self, cloud: VastCloud, request: LaunchRequest, cooldowns: Cooldowns) -> RentPlan:
        from . import api
        from .cloud import plan

        return plan(await api.load_offers(cloud.api, self, request), request, cooldowns)

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:
        from .cloud import RentPlan

        assert isinstance(plan, RentPlan)
        ask = plan.asks[offer.kind]
        return replace(offer, kind=ask.kind, place=f"{ask.country} #{ask.id}")

    def _launcher(self, cloud: VastCloud, recorder: Recorder, tasks: TaskGroup) -> VastLauncher:  # noqa: ARG002
        from .cloud import VastLauncher

        return VastLauncher(self, cloud, recorder)
