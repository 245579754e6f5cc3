"""Clients killed at any moment leave nothing that gc does not end, also where lists are out of date."""

from __future__ import annotations

import pytest

from outrider.testing import Times

from ..cloud.suite import test_kills

__all__ = ["test_kills"]


@pytest.fixture
def times() -> Times:
    return Times(stale_s=0.2, wavering=True)
