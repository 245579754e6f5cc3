"""What the caller of a broadcast gets, by how its ranks ended."""

from __future__ import annotations

import pytest

from outrider.actors.ports import GaveUp, NodeId, Reason, Settled, Verdict
from outrider.engine.api.errors import BroadcastFailed, CapacityError, NodeLost
from outrider.engine.serialization.outcome import unpack_all
from outrider.engine.serialization.payload import Payload, Received
from outrider.engine.wire import values
from outrider.engine.wire.messages import Cause, Ended, Value

PAYLOAD = Payload("train", b"digest", b"code", Value(b""))


def returned(value: object, rank: int) -> Settled:
    dumped = values.inline(values.dump(value))
    return Settled(Verdict.RETURNED, Received(dumped.data, dumped.sizes), NodeId(rank), rank, 1, 1)


def lost(reason: Reason, rank: int) -> GaveUp:
    return GaveUp(reason, ((NodeId(rank), "gone"),), rank)


def test_values_come_by_rank() -> None:
    assert unpack_all([returned(rank, rank) for rank in range(3)], PAYLOAD) == [0, 1, 2]


@pytest.mark.parametrize(
    ("reason", "kind"), [(Reason.LOST, NodeLost), (Reason.LOSING, NodeLost), (Reason.NO_REPLACEMENT, CapacityError)]
)
@pytest.mark.parametrize("failed_too", [False, True])
def test_ranks_that_were_lost_are_the_error_and_the_others_are_on_it(
    reason: Reason, kind: type[NodeLost | CapacityError], failed_too: bool
) -> None:
    exited = Settled(Verdict.DIED, Ended(1, Cause.EXIT, 3, ""), NodeId(2), 2, 1, 1)
    with pytest.raises(kind) as caught:
        unpack_all([returned("good", 0), lost(reason, 1), exited if failed_too else returned("well", 2)], PAYLOAD)
    good, gone, third = caught.value.outcomes
    assert (good.result(), gone.error, third.error is None) == ("good", caught.value, not failed_too)


def test_without_any_the_failures_are_a_group() -> None:
    exited = Settled(Verdict.DIED, Ended(1, Cause.EXIT, 3, ""), NodeId(1), 1, 1, 1)
    with pytest.raises(BroadcastFailed) as caught:
        unpack_all([returned("good", 0), exited], PAYLOAD)
    assert caught.value.outcomes[0].result() == "good"
