"""Hyperstack's cloud on this computer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import Hyperstack
from outrider.providers.base import LaunchRequest
from outrider.providers.cloud import labels
from outrider.providers.cloud.account import account_of
from outrider.providers.hyperstack import api
from outrider.providers.hyperstack import cloud as cloud_module
from outrider.providers.hyperstack.cloud import HyperstackSurveyor, labels_in
from outrider.testing import HyperstackCloud, Times, cloud_faults
from outrider.testing.clouds.shared.checks import Subject

from ..cloud.suite import anyio_backend, dead_pool, journal_path, outrider, surroundings, times, unguarded

__all__ = ["anyio_backend", "dead_pool", "journal_path", "outrider", "times", "unguarded"]  # fixtures of all clouds
KEY = "a-key-of-nobody"
Provider = Callable[..., Hyperstack]


@pytest.fixture
def cloud(times: Times, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HyperstackCloud]:
    surroundings(monkeypatch, tmp_path, api.KEY, KEY)
    monkeypatch.setattr(cloud_module, "LAG_S", 1.0)
    with HyperstackCloud(times, keys=[KEY]) as cloud:
        yield cloud


@pytest.fixture
def provider(cloud: HyperstackCloud) -> Provider:
    return lambda **options: Hyperstack(**{"endpoint_url": cloud.endpoint_url, **options})


@pytest.fixture
def calls() -> int:
    return 20


@pytest.fixture
def subject(cloud: HyperstackCloud, provider: Provider) -> Subject:
    def mark(name: str, pool: str, owner: str) -> None:
        said = cloud.machine(name).body
        others = [each for each in said["labels"] if not each.startswith((labels.POOL, labels.OWNER))]
        marked = [*others, f"{labels.POOL}={pool}", f"{labels.OWNER}={owner}"]
        cloud.store._put(name, body={**said, "labels": marked})

    return Subject(
        front=cloud,
        provider=provider,
        surveyor=HyperstackSurveyor(),
        keys=api.KEYS,
        account=account_of(KEY),
        request=LaunchRequest("ssh-ed25519 CLIENT", 1),
        options={"instance_types": ["n1-cpu-small"]},
        launch="Create_VMs",
        call="POST /core/virtual-machines",
        makes="Import_key_pair",
        end_refused=cloud_faults.CallRefused("Delete_VM", "bad_request", "No.", 400, times=None),
        no_room="Not enough stock",
        take=lambda name: cloud.store.stop(name, "taken"),
        cause="it was powered off, and costs money until it is deleted",
        whose=lambda machine: labels.thing(machine.id, labels_in(machine.body)),
        mark=mark,
        survey_options={"instance_types": ["n3-RTX-A6000x1-spot"]},
        kind="n3-RTX-A6000x1-spot",
        market="spot",
        hourly_usd=0.4067,
    )
