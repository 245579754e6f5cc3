"""What `outrider ps` and `outrider gc` find of RunPod's pods, and end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outrider import RunPod
from outrider.providers.base import AcceleratorRequest, EntryPoints, LaunchRequest
from outrider.providers.runpod.cloud import RunPodSurveyor, read
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.resource_ownership import Thing
from outrider.testing import RunPodCloud

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2, accelerator=AcceleratorRequest("RTX4090", count=2))
Provider = Callable[..., RunPod]


async def test_a_pod_of_another_pool_or_of_nobody_is_left_alone(cloud: RunPodCloud, provider: Provider) -> None:
    async with provider().open("mine", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 1)
        (pod,) = cloud.machines()
        cloud.store._put(pod.id, body={**pod.body, "name": "renamed"})
        place = {"account": "any", "endpoint_url": cloud.endpoint_url}
        assert (await RunPodSurveyor().survey(place, ())).machines == ()
        (found,) = (await RunPodSurveyor().survey(place, Journal.open().records()[0].intents)).machines
        assert (found.id, found.pool) == (pod.id, "")
    assert cloud.left() == []  # the journal has its id


def test_a_strangers_pod_of_which_little_is_said_is_in_nobodys_way() -> None:
    assert read({"id": "pod", "name": "mine", "status": "RUNNING"}).whose == Thing("pod")
