"""What `outrider offers`, `ps` and `gc` say of machines of Vast.ai's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from outrider.providers.vast import api
from outrider.testing import VastCloud
from outrider.testing.clouds.shared.kills import Kill

from ..cloud.suite import Command

if TYPE_CHECKING:
    import pytest


def test_offers_and_a_dead_clients_machines_are_shown_and_these_are_ended(
    cloud: VastCloud,
    outrider: Command,
    dead_pool: Callable[[Kill], dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api, "URL", cloud.endpoint_url)
    (offer, *_) = json.loads(outrider("offers", "--provider", "vast", "--accelerator", "H100:8", "--spot", "--json"))
    assert (offer["kind"], offer["place"], offer["market"]) == ("8x H100 SXM", "US #3000", "spot")
    pool = dead_pool(Kill(5, "0.1"))  # the second machine is rented by then
    assert {(each["kind"], each["market"]) for each in pool["machines"]} == {("1x RTX 4090", "spot")}
