"""A notice, given as a file on a host: acted on in time, and taken back without a trace."""

from __future__ import annotations

import pytest
from bars import notices
from bars.site import busy

pytestmark = pytest.mark.anyio


async def test_a_notice_is_acted_on_in_five_seconds(lab):
    """The task is told, the replacement is asked for, and nothing new goes there."""
    acted = await notices.notice(lab)
    assert max(acted.told, acted.noticed, acted.requested) < busy(notices.ACTED_S), acted


async def test_a_notice_that_is_withdrawn_leaves_the_node_in_service(lab):
    assert await notices.withdrawn(lab) < busy(notices.ACTED_S)
