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
from ..cloud.provider import CloudProvider, set_all, tags
from ..errors import BadRequest, UnknownOption
from ..shared.option_names import checking_options

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.offers import Cooldowns
    from ..cloud.port import Plan
    from ..cloud.recorder import Recorder
    from .cloud import GCPCloud
    from .launcher import GCPLauncher

REGION = ("CLOUDSDK_COMPUTE_REGION", "GOOGLE_CLOUD_REGION")
WEEK_H = 168.0
LONGEST_H = 2880.0  # hours, the longest run time that Google accepts: 120 days; page "Limit the run time of a VM"


@partial(checking_options, error=UnknownOption)
@dataclass(frozen=True, slots=True)
class GCP(CloudProvider["GCPCloud"]):
    """Nodes on Google Compute Engine, in one region of one project.

    A pool finds its machines by the label ``outrider-pool``; `outrider gc` ends the machines that no living pool owns.

    Args:
        region: The region. Default: ``CLOUDSDK_COMPUTE_REGION``.
        project: The project. Default: that of the credentials, or ``GOOGLE_CLOUD_PROJECT``.
        credentials: The file with the key of a service account. Default: the credentials that Google's own libraries
            find.
        image: A family of the project's images, or a path such as ``"projects/my-images/global/images/family/torch"``.
            It needs cloud-init and an SSH server. Default: a current Ubuntu, with NVIDIA's driver for machines with
            GPUs.
        user: The login name, which cloud-init creates.
        network: The network. Default: the network ``default``.
        subnet: The subnet. A network in auto mode needs none.
        network_tags: Tags of firewall rules that exist. Default: the pool makes its own, open to ``ssh_from`` on port
            22 only.
        service_account: The email of the service account whose permissions tasks have. Default: none.
        instance_types: Use only these types.
        zones: Use only these zones.
        address: ``"public"``, or ``"private"``: machines have no public address, and need Cloud NAT to install
            packages.
        ssh_from: The addresses that may connect, as CIDRs. ``"auto"``: the address of this computer.
        max_run_hours: Hours after which Google deletes a machine even while this program lives; the pool replaces it.
            At most 2880, default 168.
        endpoint_url: Another service with the interface of Compute Engine.
        labels: Further labels for the machines.

    Raises:
        ValueError: An option can never work.
        TypeError: The option does not exist.
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
        """Return whether machines have public addresses."""
        return self.address == "public"

    def _reach(self) -> AbstractAsyncContextManager[GCPCloud]:
        from .cloud import reach

        region = self.region or next(filter(None, map(os.environ.get, REGION)), "")
        if not region:  # check the region first: without credentials, the search for them may take seconds
            raise BadRequest("no region is known: give GCP('us-central1'), or set CLOUDSDK_COMPUTE_REGION")
        options = {"project": self.project, "credentials": self.credentials, "endpoint_url": self.endpoint_url}
        return reach({name: value for name, value in options.items() if value}, region)

    async def _first_plan(self, cloud: GCPCloud, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
        from .launcher import plan

        return await plan(cloud.api, self, request, cooldowns, ())

    def _launcher(self, cloud: GCPCloud, recorder: Recorder, tasks: TaskGroup) -> GCPLauncher:
        from .launcher import GCPLauncher

        return GCPLauncher(self, cloud.api, recorder, tasks)
