"""Tests of pools on a busy computer, which lets a process stand still for seconds now and then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from outrider.engine.transport import heartbeat

STANDS_STILL_S = 60.0


@contextmanager
def nodes_may_stand_still() -> Iterator[None]:
    """A node that stands still is not lost meanwhile, as one that is silent for six seconds else is."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("QUIET_S", "SILENCE_S"):
            patch.setattr(heartbeat, name, STANDS_STILL_S)
        yield
