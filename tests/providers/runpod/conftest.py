"""RunPod's cloud on this computer, without its limits of requests: its own tests have them on a mock clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import RunPod
from outrider.providers.base import AcceleratorRequest, LaunchRequest
from outrider.providers.cloud.account import account_of
from outrider.providers.runpod import api
from outrider.providers.runpod.cloud import RunPodSurveyor, thing
from outrider.testing import RunPodCloud, Times, cloud_faults
from outrider.testing.clouds.shared.checks import Subject

from ..cloud.suite import (
    anyio_backend,
    dead_pool,
    journal_path,
    outrider,
    surroundings,
    times,
    unguarded,
    without_limits,
)

__all__ = ["anyio_backend", "dead_pool", "journal_path", "outrider", "times", "unguarded"]  # fixtures of all clouds
KEY = "rpa_OUTRIDERTEST0123456789ABCDEF"
Provider = Callable[..., RunPod]


@pytest.fixture
def cloud(times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RunPodCloud]:
    surroundings(monkeypatch, tmp_path, api.KEY, KEY, api)
    with RunPodCloud(times, keys=[KEY]) as cloud:
        yield cloud


@pytest.fixture
def provider(cloud: RunPodCloud) -> Provider:
    return lambda **options: RunPod(**{"endpoint_url": cloud.endpoint_url, **options})


@pytest.fixture
def calls() -> int:
    return 8


@pytest.fixture
def subject(cloud: RunPodCloud, provider: Provider) -> Subject:
    def mark(name: str, pool: str, owner: str) -> None:
        said = {**cloud.machine(name).body, "name": f"outrider:{pool}:{owner}:{'0' * 32}"}
        cloud.store._put(name, body=said)

    return Subject(
        front=cloud,
        provider=provider,
        surveyor=RunPodSurveyor(),
        keys=api.KEYS,
        account=account_of(KEY),
        request=LaunchRequest("ssh-ed25519 CLIENT", 1, accelerator=AcceleratorRequest("RTX4090", count=2)),
        launch="createPod",
        call="POST /pods",
        end_refused=cloud_faults.CallRefused("deletePod", message="No.", status=400, times=None),
        no_room="left there now (no-instances: There are no longer any instances",
        take=cloud.stop,
        cause="its container was stopped, as RunPod does where the account has no balance left",
        whose=lambda machine: thing({"id": machine.id, "name": machine.body["name"]}),
        mark=mark,
        kind="2 x NVIDIA GeForce RTX 4090",
        market="on-demand",
        hourly_usd=1.38,
        ended=frozenset({"shutting-down", "terminated"}),
        before=without_limits("runpod"),
    )
