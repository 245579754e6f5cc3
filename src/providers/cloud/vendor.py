"""The description of a cloud for the shared modules: names, error codes and texts. Constants, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """The description of one cloud.

    Args:
        name: The name of the cloud and of its class, as in ``AWS(zones=...)``.
        service: The cloud's service that provides machines.
        causes: Texts for the user that say why a machine ended, by `InstanceView.reason`.
        interruptions: The reasons that mean that the cloud has taken the machine.
        quotas: Error codes that apply to all zones.
        lasting: Error codes of refusals that last long, so that waiting does not help.
        general_purpose: Prefixes of the types that are preferred if a request has no accelerator.
        price_advice: What the user should do if a price is unknown.
        usual_zone: Returns whether a zone (region, zone) is used without being named by the user.
        regions_with: Returns the regions that have an accelerator, as far as known.
        first_lease_more_s: Seconds by which the first lease is longer, for a machine that its client has not reached
            yet.
        warning: A warning for the user before a pool's first launch.
        warning_of_several: A warning before the first launch of a pool with several nodes.
    """

    name: str
    service: str
    causes: Mapping[str, str] = field(default_factory=dict)
    interruptions: frozenset[str] = frozenset()
    quotas: frozenset[str] = frozenset()
    lasting: frozenset[str] = frozenset()
    general_purpose: tuple[str, ...] = ()
    price_advice: str = ""
    usual_zone: Callable[[str, str], bool] = lambda region, zone: True  # noqa: ARG005
    off_is_ended: bool = True  # whether a machine that powers itself off ends and no longer costs anything
    first_lease_more_s: float = 0.0
    # size limit of a cloud-config in base64; the default is EC2's limit, the lowest of all clouds
    user_data_bytes: int = 16 << 10
    regions_with: Callable[[str], Sequence[str]] = lambda accelerator: ()  # noqa: ARG005
    warning: str = ""
    warning_of_several: str = ""
