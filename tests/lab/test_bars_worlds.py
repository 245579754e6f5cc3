"""A gloo all-reduce over four hosts that loses a rank at any moment, rank 0's host to a power cut: it ends right."""

from __future__ import annotations

import pytest
from bars import cuts, worlds
from bars.site import busy

pytestmark = pytest.mark.anyio


async def test_a_broadcast_that_loses_any_rank_at_any_moment_ends_right(lab):
    """Four of the benchmark's hundred; where gloo alone would hang, in the first of them."""
    pytest.importorskip("torch")
    restarts = await worlds.broadcasts(lab, 4)
    assert [restart.fault for restart in restarts] == [worlds.SILENT, worlds.KILLED, worlds.RESET, worlds.KILLED]
    assert restarts[0].rank == 0
    again = [restart for restart in restarts if restart.to_seen_s is not None and restart.to_running_s is not None]
    assert again, "no loss came in time"
    for restart in again:
        assert restart.to_seen_s < busy(worlds.SEEN_S[restart.fault]), restart


async def test_a_node_that_comes_back_is_of_the_past_and_ends(lab):
    """Long before its lease: it is told as soon as it can be reached."""
    assert await cuts.old_node_returns(lab) < busy(cuts.HEARD_S)
