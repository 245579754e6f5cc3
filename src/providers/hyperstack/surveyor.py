"""Hyperstack, as `outrider ps` and `outrider gc` ask it which machines there are, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ..cloud import labels
from ..cloud.surveyor import CloudSurveyor
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine
from .catalogue import ADDRESS_USD, SPOT, book_of, usd_of
from .cloud import KEY_PAIRS, MACHINES, TOKEN_LENGTH, HyperstackCloud, key_pair_thing, labels_in, reach, thing_of
from .service import listed


class HyperstackSurveyor(CloudSurveyor[HyperstackCloud]):
    """Implements `survey.Surveyor`."""

    provider, mark = "hyperstack", "account"

    def reach(self, place: Place) -> AbstractAsyncContextManager[HyperstackCloud]:
        return reach(place)

    async def find(
        self, cloud: HyperstackCloud, known: Sequence[str]
    ) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        book = book_of(await cloud.api.call("GET", "/pricebook"))
        there = [
            _found(each, book)
            for each in await listed(cloud.api, MACHINES, "instances")
            if each["status"] != "DELETED" and (labels.POOL in labels_in(each) or str(each["id"]) in known)
        ]
        begin = labels.name_of("")
        pairs = [each for each in await listed(cloud.api, KEY_PAIRS, "keypairs") if str(each["name"]).startswith(begin)]
        return there, [key_pair_thing(each, str(each["name"])[len(begin) : -TOKEN_LENGTH - 1]) for each in pairs]


def _found(machine: Mapping[str, Any], book: Mapping[str, float]) -> FoundMachine:
    flavor, usd = machine["flavor"], usd_of(machine["flavor"], book)
    created = datetime.fromisoformat(machine["created_at"])
    return FoundMachine(
        **asdict(thing_of(machine)),
        kind=str(flavor["name"]),
        market="spot" if str(flavor["gpu"] or "").endswith(SPOT) else "on-demand",
        zone=str(machine["environment"]["name"]),
        state=str(machine["status"]).lower(),
        launched_at=(created if created.tzinfo else created.replace(tzinfo=UTC)).timestamp(),
        address=str(machine.get("floating_ip") or ""),
        hourly_usd=None if usd is None else usd + ADDRESS_USD,
        until=labels.number(labels_in(machine).get(labels.UNTIL, "")),
    )
