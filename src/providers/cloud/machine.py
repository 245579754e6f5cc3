"""A machine that was just created, before it has an address."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ..base import Machine, MachineId
from .offers import Offer
from .userdata import LEASE

NOTHING: Mapping[str, str] = MappingProxyType({})


def new_machine(
    name: MachineId,
    offer: Offer,
    *,
    host_key: str,
    image: str,
    extras_usd: float = 0.0,
    notices: tuple[str, ...] = (),
    lease: str = LEASE,
    billed_at_least_s: float = 0.0,
    env: Mapping[str, str] = NOTHING,
    facts: Mapping[str, str] = NOTHING,
) -> Machine:
    """Return the new machine of an offer, which was started with `userdata.user_data`. Its ``host_key`` is replaced at
    the first contact.

    ``extras_usd``: USD per hour in addition to the offer's price. ``facts``: further facts to display.
    """
    return Machine(
        id=name,
        address=None,
        host_key=host_key,
        rotate_host_key=True,
        notices=notices,
        lease=lease,
        hourly_cost=offer.hourly_usd + extras_usd,
        billed_at_least_s=billed_at_least_s,
        env=env,
        facts={
            "type": offer.type.name,
            "zone": offer.zone,
            "market": offer.market,
            "price": f"{offer.hourly_usd:.4f} USD/h",
            "image": image,
            **facts,
        },
    )
