"""`outrider ps` and `gc` at Hyperstack's test cloud."""

from __future__ import annotations

import pytest

from outrider.providers.base import LaunchRequest
from outrider.providers.hyperstack.cloud import HyperstackSurveyor, read
from outrider.providers.shared.resource_ownership import Thing
from outrider.testing import HyperstackCloud

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1, max_lifetime_s=60)


async def test_what_is_not_a_pools_is_not_shown(cloud: HyperstackCloud) -> None:
    cloud.key_pairs[7] = {"id": 7, "name": "my-laptop", "environment": {"name": "default-CANADA-1"}}
    answer = await HyperstackSurveyor().survey({"account": "any", "endpoint_url": cloud.endpoint_url}, [])
    assert answer.machines == answer.others == ()


def test_a_strangers_machine_of_which_little_is_said_is_in_nobodys_way() -> None:
    assert read({"id": 1, "status": "ACTIVE", "flavor": None}, {"L40": 1.0}).whose == Thing("1")
