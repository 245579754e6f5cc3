"""Podman for the tests that start containers, and a journal of each test's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .podman import MISSING, Podman, podman


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("OUTRIDER_STATE", str(folder))
    return folder


@pytest.fixture(scope="module")
def runtime() -> Iterator[Podman]:
    if MISSING:
        pytest.skip(MISSING)
    with podman(Path(tempfile.mkdtemp(prefix="outrider-podman-"))) as found:
        yield found


@pytest.fixture
def containers(runtime: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """Podman as the provider finds it. No test leaves a container."""
    for name, value in runtime.env.items():
        monkeypatch.setenv(name, value)
    yield runtime
    assert runtime.names == []
