"""`RunPod`: GPU pods of RunPod's, that end with their pool."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineOffer
from ..cloud.options import set_all
from ..cloud.provider import CloudProvider
from ..errors import UnknownOption
from ..given_paths import StrPath
from ..option_names import checking_options

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.cooldowns import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import RunPodCloud
    from .launcher import RunPodLauncher


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True, kw_only=True)
class RunPod(CloudProvider["RunPodCloud"]):
    """Nodes on RunPod: each is a pod, which is a container with GPUs, or with processors alone.

    ``key_file``: a file with an API key; by default the key is in the variable ``RUNPOD_API_KEY``. ``cloud``: of
    RunPod's own data centers (``"secure"``), or of other people's computers (``"community"``). ``data_centers``,
    ``instance_types``: use only these; types are ids of GPUs or CPU flavors. ``image``: of the containers, where
    ``Image(container=...)`` names none; by default PyTorch of RunPod's own. ``registry``: the id of credentials for its
    registry, as RunPod has stored them. ``min_cuda``: the least CUDA version of the hosts' driver, as in ``"12.4"``.
    ``network_volume``: the id of a volume, which is mounted at ``/workspace``. ``endpoint_url``: another address of the
    interface.

    A pod whose client is gone deletes itself when its lease is over, by the key for itself alone that RunPod gives it.

    Raises:
        ValueError: an option can never work.
        TypeError: there is no such option.
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
        """True: ``Image(container=...)`` says which image the pods have."""
        return True

    def _reach(self) -> AbstractAsyncContextManager[RunPodCloud]:
        from ..cloud.account import place_of
        from .cloud import reach

        return reach(place_of(self.key_file, self.endpoint_url))

    async def _first_plan(self, cloud: RunPodCloud, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        from .launcher import plan

        return await plan(cloud.api, self, request, cooldowns, ())

    def _shown(self, offer: MachineOffer, plan: Plan) -> MachineOffer:  # noqa: ARG002
        """The offer without the memory and CPUs of a pod, known once it exists, unless they were asked for."""
        return replace(offer, vcpus=offer.vcpus or None, memory_gb=offer.memory_gb or None)

    def _launcher(self, cloud: RunPodCloud, recorder: Recorder, tasks: TaskGroup) -> RunPodLauncher:  # noqa: ARG002
        from .launcher import RunPodLauncher

        return RunPodLauncher(self, cloud, recorder)
