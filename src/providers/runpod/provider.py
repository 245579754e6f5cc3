"""`RunPod`: GPU pods of RunPod, which end with their pool."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineOffer
from ..cloud.provider import CloudProvider, set_all
from ..errors import UnknownOption
from ..shared.option_names import checking_options
from ..shared.paths import StrPath

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import RunPodCloud, RunPodLauncher


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunPod(CloudProvider["RunPodCloud"]):
    """Nodes on RunPod: each is a pod, which is a container with GPUs or with processors alone.

    A pod whose client is gone deletes itself when its lease is over. To do so, it uses the API key that RunPod gives
    each pod, which is valid only for that pod.

    Args:
        key_file: A file with an API key. Default: the variable ``RUNPOD_API_KEY`` holds the key.
        cloud: ``"secure"``: RunPod's own data centers. ``"community"``: other people's computers, which cost less; GPU
            pods only.
        data_centers: Use only these data centers.
        instance_types: Use only these ids of GPUs or CPU flavors.
        image: The image of the containers, unless ``Image(container=...)`` names one. Default: RunPod's own image with
            PyTorch.
        registry: The id of credentials for the image's registry, as stored at RunPod.
        min_cuda: The lowest CUDA version that the driver of a pod's host may have, such as ``"12.4"``. With the default
            image: 12.8.
        network_volume: The id of a volume, mounted at ``/workspace``. A volume is in one data center: also name that
            data center in ``data_centers``.
        endpoint_url: The address of another service with RunPod's interface.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
    """

    key_file: StrPath | None = None
    cloud: Literal["secure", "community"] = "secure"
    data_centers: Collection[str] | None = None
    instance_types: Collection[str] | None = None
    image: str | None = None
    registry: str | None = None
    min_cuda: str | None = None
    network_volume: str | None = None
    endpoint_url: str | None = None

    name = "runpod"

    def __post_init__(self) -> None:
        if self.cloud not in ("secure", "community"):
            raise ValueError(f"RunPod(cloud=...) is 'secure' or 'community', not {self.cloud!r}")
        cuda = self.min_cuda
        if cuda is not None and not (isinstance(cuda, str) and re.fullmatch(r"\d+\.\d+", cuda)):
            raise ValueError(f"RunPod(min_cuda=...) is a version as in '12.4', not {cuda!r}")
        set_all(self, {}, lists=("data_centers", "instance_types"))

    @property
    def containers(self) -> bool:
        """Return True: pods run the image that ``Image(container=...)`` names."""
        return True

    def _reach(self) -> AbstractAsyncContextManager[RunPodCloud]:
        from ..cloud.account import place_of
        from .cloud import reach

        return reach(place_of(self.key_file, self.endpoint_url))

    async def _first_plan(self, cloud: RunPodCloud, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        from .cloud import plan

        return await plan(cloud.api, self, request, cooldowns, ())

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """Return the offer without CPUs and memory, unless requested: those of a future pod are unknown."""
        return replace(offer, vcpus=offer.vcpus or None, memory_gb=offer.memory_gb or None)

    def _launcher(self, cloud: RunPodCloud, recorder: Recorder, tasks: TaskGroup) -> RunPodLauncher:  # noqa: ARG002
        from .cloud import RunPodLauncher

        return RunPodLauncher(self, cloud, recorder)
