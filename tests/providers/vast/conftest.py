"""Vast.ai on this computer, without its limits of requests: its own tests have them on a mock clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import Vast
from outrider.providers.base import LaunchRequest
from outrider.providers.cloud import labels
from outrider.providers.errors import NoCapacity
from outrider.providers.vast import api
from outrider.providers.vast import cloud as launcher
from outrider.providers.vast.cloud import VastSurveyor
from outrider.testing import Times, VastCloud, cloud_faults
from outrider.testing.clouds.shared.checks import Subject

from ..cloud.suite import anyio_backend, dead_pool, journal_path, outrider, surroundings, times, without_limits

__all__ = ["anyio_backend", "dead_pool", "journal_path", "outrider", "times"]  # fixtures of all clouds
KEY = "0123456789abcdef0123456789abcdef"
Provider = Callable[..., Vast]


@pytest.fixture
def cloud(times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[VastCloud]:
    surroundings(monkeypatch, tmp_path, api.KEY, KEY, api)
    with VastCloud(times, keys=[KEY]) as cloud:
        yield cloud


@pytest.fixture
def provider(cloud: VastCloud) -> Provider:
    return lambda **options: Vast(**{"endpoint_url": cloud.endpoint_url, **options})


@pytest.fixture
def calls() -> int:
    return 10


@pytest.fixture
def unguarded() -> Callable[[pytest.MonkeyPatch], None]:
    """A launch without an answer is sent again, to the next offer."""

    async def sent_again(service: str, sent_at: float, labelled: object) -> list[str]:
        raise NoCapacity("not looked for")

    return lambda patch: patch.setattr(launcher, "look_for", sent_again)


@pytest.fixture
def subject(cloud: VastCloud, provider: Provider) -> Subject:
    def mark(name: str, pool: str, owner: str) -> None:
        there = cloud.machine(name)
        said = {**there.labels, labels.POOL: pool, labels.OWNER: owner}
        cloud.store._put(name, labels=said, body={**there.body, "label": labels.as_text(said, 256)})

    return Subject(
        front=cloud,
        provider=provider,
        surveyor=VastSurveyor(),
        keys=api.KEYS,
        account="4711",
        request=LaunchRequest("ssh-ed25519 CLIENT", 1, allocation="spot"),
        launch="createInstance",
        call="PUT /api/v0/asks/",
        end_refused=cloud_faults.CallRefused("destroyInstances", "x", "No.", 400, times=None),
        no_room="rented that machine of Vast.ai's meanwhile (no_such_ask",
        take=cloud.outbid,
        cause="somebody bid more",
        whose=lambda machine: labels.thing(machine.id, machine.labels),
        mark=mark,
        survey_options={"regions": ["US"]},
        kind="1x RTX 4090",
        market="spot",
        hourly_usd=0.2 * 1.1 + 32 * 0.15 / 720,
        ends_itself_s=120.0 + 240.0 + 30.0,  # the lease, its grace in a container, and for the end itself
        before=without_limits("vast"),
    )
