"""What `outrider offers`, `ps` and `gc` say of RunPod's pods."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from outrider.providers.runpod import api
from outrider.testing import RunPodCloud
from outrider.testing.clouds.shared.kills import Kill

from ..cloud.suite import Command


@pytest.fixture(autouse=True)
def usual_address(cloud: RunPodCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "URL", cloud.endpoint_url)


def test_offers_are_shown_with_their_prices(outrider: Command) -> None:
    offers = json.loads(outrider("offers", "--provider", "runpod", "--accelerator", "H100", "--json"))
    assert offers
    assert {each["market"] for each in offers} == {"on-demand"}
    prices = [each["hourly_usd"] for each in offers]
    assert prices == sorted(prices)
    assert {each["accelerator"] for each in offers} == {"H100"}


def test_a_dead_clients_pods_are_shown_and_ended(dead_pool: Callable[[Kill], dict[str, Any]]) -> None:
    dead_pool(Kill(3, "0"))  # at the answer of the second pod
