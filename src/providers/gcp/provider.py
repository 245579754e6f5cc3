"""`GCP`: machines of Google Compute Engine, spot and on demand, that end with their pool."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest
from ..cloud.options import set_all, tags
from ..cloud.provider import CloudProvider
from ..errors import BadRequest, UnknownOption
from ..option_names import checking_options

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.cooldowns import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import GCPCloud
    from .launcher import GCPLauncher

REGION = ("CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_REGION")
WEEK_H = 168.0
LONGEST_H = 2880.0  # "Limit the run time of a VM": 120 days


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True)
class GCP(CloudProvider["GCPCloud"]):
    """Nodes on Google Compute Engine, in one region of one project.

    ``region``: by default ``CLOUDSDK_COMPUTE_REGION``. ``project``: by default that of the credentials, or
    ``GOOGLE_CLOUD_PROJECT``. ``credentials``: the file of a service account's key; by default those that Google's own
    libraries find. ``image``: a family of the project's images, or a path such as
    ``"projects/my-images/global/images/family/torch"``; by default a current Ubuntu, with NVIDIA's driver where there
    is a GPU. ``user``: who logs in. ``network``, ``subnet``: by default the network ``default``. ``network_tags``: tags
    of firewall rules that exist; by default the pool makes its own, open to ``ssh_from`` on port 22 only: CIDRs, or
    ``"auto"`` for this computer's address. ``service_account``: whose rights tasks have, by its email; by default none.
    ``instance_types``, ``zones``: use only these. ``address``: how the machines are reached; ``"private"`` gives them
    no public address. ``max_run_hours``: after so long Google deletes a machine, even if this program lives (at most
    2880, by default 168), and the pool replaces it. ``endpoint_url``: another service with Compute Engine's interface.
    ``labels``: further labels for the machines.

    Machines are found by the label ``outrider-pool``; `outrider gc` ends those that no living pool owns.

    Raises:
        ValueError: an option can never work.
        TypeError: there is no such option.
    """

    region: str | None = None
    _: KW_ONLY
    project: str | None = None
    credentials: str | None = None
    image: str | None = None
    user: str = "ubuntu"
    network: str = "default"
    subnet: str | None = None
    network_tags: Collection[str] | None = None
    service_account: str | None = None
    instance_types: Collection[str] | None = None
    zones: Collection[str] | None = None
    address: Literal["public", "private"] = "public"
    ssh_from: str | Sequence[str] = "auto"
    max_run_hours: float = WEEK_H
    endpoint_url: str | None = None
    labels: Mapping[str, str] | tuple[tuple[str, str], ...] = ()

    name = "gcp"

    def __post_init__(self) -> None:
        from ..cloud.addresses import reached_by
        from ..cloud.small_labels import KEY, LIMITS, RESERVED, VALUE

        hours = self.max_run_hours
        if isinstance(hours, bool) or not 0 < hours <= LONGEST_H:
            raise ValueError(f"GCP(max_run_hours=...) is more than 0 and at most {LONGEST_H:g}, not {hours!r}")
        labels = tags(
            "GCP",
            self.labels,
            service="Compute Engine",
            reserved=(RESERVED,),
            option="labels",
            key=KEY,
            value=VALUE,
            limits=LIMITS,
        )
        ssh_from = reached_by("GCP", self.address, self.ssh_from)
        checked = {"ssh_from": ssh_from, "max_run_hours": float(hours), "labels": labels}
        set_all(self, checked, lists=("network_tags", "instance_types", "zones"))

    @property
    def public(self) -> bool:
        return self.address == "public"

    def _reach(self) -> AbstractAsyncContextManager[GCPCloud]:
        from .cloud import reach

        region = self.region or next(filter(None, map(os.environ.get, REGION)), "")
        if not region:  # before credentials are looked for, which may take seconds where there are none
            raise BadRequest("no region is known: give GCP('us-central1'), or set CLOUDSDK_COMPUTE_REGION")
        given = {"project": self.project, "credentials": self.credentials, "endpoint_url": self.endpoint_url}
        return reach({name: value for name, value in given.items() if value}, region)

    async def _first_plan(self, cloud: GCPCloud, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        from .launcher import plan

        return await plan(cloud.api, self, request, cooldowns, ())

    def _launcher(self, cloud: GCPCloud, recorder: Recorder, tasks: TaskGroup) -> GCPLauncher:
        from .launcher import GCPLauncher

        return GCPLauncher(self, cloud.api, recorder, tasks)
