"""The words and codes of one cloud, as far as what all clouds share must know them. Constants, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ...lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One cloud.

    ``name``: as people call it and write it, as in ``AWS(zones=...)``. ``service``: what of it has the machines.
    ``causes``: why a machine ended in words, by its `InstanceView.reason`. ``interruptions``: the reasons that mean
    that the cloud has taken it. ``quotas``: codes of errors that hold in all zones. ``lasting``: codes of errors that
    waiting does not mend. ``general_purpose``: beginnings of names of the types that are preferred when no accelerator
    is asked for. ``price_advice``: what to do when a price is not known. ``usual_zone``: whether a zone (region, zone)
    is used without being named. ``regions_with``: the regions that have an accelerator, as far as known.
    ``first_lease_more_s``: so much longer than others lives a machine that its client has never reached.
    ``warning``: what a pool's user is told before its first launch; ``warning_of_several``: if it has several nodes.
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
    off_is_ended: bool = True  # a machine that powers itself off ends, and costs nothing any more
    first_lease_more_s: float = 0.0
    user_data_bytes: int = 16 << 10  # of a cloud-config, in base64; EC2 takes the fewest
    regions_with: Callable[[str], Sequence[str]] = lambda accelerator: ()  # noqa: ARG005
    warning: str = ""
    warning_of_several: str = ""
