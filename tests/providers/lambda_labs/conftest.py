"""Lambda's cloud on this computer, without its limits of requests: its own tests have them on a mock clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import Lambda
from outrider.providers.base import LaunchRequest
from outrider.providers.cloud import labels
from outrider.providers.cloud.account import account_of
from outrider.providers.lambda_labs import api
from outrider.providers.lambda_labs.cloud import LambdaSurveyor
from outrider.testing import LambdaCloud, Times, cloud_faults
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
KEY = "secret_outrider_test.0123456789abcdef"
Provider = Callable[..., Lambda]


@pytest.fixture
def cloud(times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LambdaCloud]:
    surroundings(monkeypatch, tmp_path, api.KEY, KEY, api)
    with LambdaCloud(times, keys=[KEY]) as cloud:
        yield cloud


@pytest.fixture
def provider(cloud: LambdaCloud) -> Provider:
    return lambda **options: Lambda(**{"endpoint_url": cloud.endpoint_url, **options})


@pytest.fixture
def calls() -> int:
    return 14


@pytest.fixture
def subject(cloud: LambdaCloud, provider: Provider) -> Subject:
    def mark(name: str, pool: str, owner: str) -> None:
        said = {**cloud.machine(name).labels, labels.POOL: pool, labels.OWNER: owner}
        cloud.store._put(name, labels=said)

    return Subject(
        front=cloud,
        provider=provider,
        surveyor=LambdaSurveyor(),
        keys=api.KEYS,
        account=account_of(KEY),
        request=LaunchRequest("ssh-ed25519 CLIENT", 1),
        launch="launchInstance",
        call="POST /instance-operations/launch",
        makes="addSSHKey",
        end_refused=cloud_faults.CallRefused("terminateInstance", "global/x", "No.", 400, times=None),
        no_room="left there now (instance-operations/launch/insufficient-capacity: Not",
        take=cloud.preempt,
        cause="Lambda has taken it back",
        whose=lambda machine: labels.thing(machine.id, machine.labels),
        mark=mark,
        survey_options={"instance_types": ["gpu_1x_a10"]},
        kind="gpu_1x_a10",
        market="on-demand",
        hourly_usd=1.29,
        before=without_limits("lambda_labs"),
    )
