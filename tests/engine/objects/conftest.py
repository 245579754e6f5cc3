"""Tests of large objects run on asyncio, the event loop of the engine."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
