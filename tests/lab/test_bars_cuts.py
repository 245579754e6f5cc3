"""A client that loses its network: for a while, nothing is lost and nothing runs twice; for good, nothing is left."""

from __future__ import annotations

import pytest
from bars import cuts
from bars.site import STANDS_S, busy

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("nodes", [1, pytest.param(3, marks=pytest.mark.nightly)])  # test_ssh_losses.py has two
async def test_a_client_that_is_cut_off_for_a_while_loses_nothing(lab, nodes):
    """Of one node as well: nobody answers, so it is not the node."""
    await cuts.client_cut_off(lab, nodes=nodes, for_s=20.0)


async def test_a_client_that_is_cut_off_for_longer_than_the_lease_leaves_nothing_behind(lab):
    """And not before."""
    lease_s = 10.0
    gone = await cuts.client_cut_off_for_good(lab, lease_s=lease_s)
    assert set(gone) == {host.name for host in lab.hosts}
    for gone_s in gone.values():
        assert lease_s - cuts.EARLY_S - STANDS_S < gone_s < lease_s + busy(cuts.ENDED_S), gone
