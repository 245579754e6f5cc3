"""A cloud on this computer, and nothing of the real one: no credentials, no configuration, no metadata service."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import AWS
from outrider.providers.cloud import teardown
from outrider.testing import EC2, Behaviour

QUICK = Behaviour(
    boot_s=0.01,
    stop_s=0.01,
    types=("m7i.*", "c7i.large", "g5.xlarge", "p4d.24xlarge"),
    spot_usd={"m7i.large": 0.04},  # in every zone
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def journal_path(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, journal_path: Path) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "OUTRIDER_STATE": str(journal_path),
        "OUTRIDER_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def behaviour() -> Behaviour:
    """A test that is about the cloud's nature has its own: ``@pytest.mark.parametrize("behaviour", [...])``."""
    return QUICK


@pytest.fixture
def cloud(behaviour: Behaviour, surroundings: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[EC2]:
    monkeypatch.setattr(teardown, "AGAIN_S", (0.02,))
    with EC2(behaviour) as cloud:
        yield cloud


@pytest.fixture
def aws(cloud: EC2) -> Callable[..., AWS]:
    """A provider there: ``aws(zones=["us-east-1a"])``."""
    return lambda **options: AWS(region=cloud.region, endpoint_url=cloud.endpoint_url, **options)
