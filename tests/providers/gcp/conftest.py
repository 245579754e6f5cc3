"""Google Compute Engine on this computer, and nothing of the real one: no credentials, no metadata service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import GCP
from outrider.providers.cloud import teardown
from outrider.providers.gcp import api
from outrider.testing.clouds.gcp.front import GCE
from outrider.testing.clouds.shared.machines import Times

QUICK = Times(boot_s=0.01, stop_s=0.01)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_GCE_CHECK", "true")  # google-auth looks for a metadata service otherwise
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    for name in (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_CLOUD_PROJECT",
        "CLOUDSDK_COMPUTE_REGION",
        "GOOGLE_CLOUD_REGION",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def times() -> Times:
    """A test that is about the cloud's nature has its own: ``@pytest.mark.parametrize("times", [...])``."""
    return QUICK


@pytest.fixture
def cloud(times: Times, surroundings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[GCE]:
    monkeypatch.setattr(teardown, "AGAIN_S", (0.02,))
    monkeypatch.setattr(api, "PAUSES", (0.02,))
    with GCE(times, op_s=0.01) as cloud:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(cloud.credentials(tmp_path)))
        yield cloud


@pytest.fixture
def gcp(cloud: GCE) -> Callable[..., GCP]:
    """A provider there: ``gcp(zones=["us-central1-a"])``."""
    return lambda **options: GCP(**{"region": "us-central1", "endpoint_url": cloud.endpoint_url, **options})
