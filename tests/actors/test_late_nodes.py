"""Nodes that were not ready in time: what each was at, and how many, told with the error that ends the start."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.actors.interfaces import ConnectFailed, NodeId
from outrider.actors.late_nodes import NO_ADDRESS, NO_ANSWER, PREPARED, LateNodes, Preparing, sentence
from outrider.testing.fake_provider import Script

WHERE = st.sampled_from([NO_ADDRESS, NO_ANSWER, PREPARED, "at the step 'apt'"])


def test_the_sentence_says_how_many_were_where() -> None:
    late = ["at the step 'packages'", NO_ANSWER, NO_ANSWER]
    assert sentence(late, ready=1, within_s=60.0) == (
        "Of 4 nodes, after their boot_timeout of 60 s, 2 were waiting for an answer, 1 was at the step 'packages', "
        "1 is ready."
    )


@given(st.lists(WHERE, max_size=30), st.integers(0, 9), st.integers(0, 9))
def test_the_counts_add_up_and_are_of_the_last_nodes(late: list[str], wanted: int, ready: int) -> None:
    nodes = LateNodes()
    for where in late:
        nodes.add(where)
    told = nodes.describe(wanted=wanted, ready=ready, within_s=60.0)
    counted = min(len(late), max(0, wanted - ready))
    if counted == 0 or counted + ready < 2:
        assert told == ""
        return
    assert told == sentence(late[len(late) - counted :], ready=ready, within_s=60.0)
    numbers = [int(word) for word in told.replace(",", "").split() if word.isdecimal()]
    assert numbers[0] == sum(numbers[2:]) == counted + ready, "the second is the time"


@pytest.mark.anyio
async def test_a_pool_that_is_not_ready_in_time_says_where_each_node_was(rig) -> None:
    def prepare(site) -> None:
        site.refuse[NodeId(1)] = [ConnectFailed("connection refused")]
        site.prepare_s |= {NodeId(2): 1e6}

    def preparing(node: NodeId) -> Preparing | None:
        return Preparing("packages", "downloading torch", 25.0) if node == 2 else None

    script = Script(boot_s=(1e6, 0.0, 0.0, 0.0))
    async with rig(
        script, desired=4, boot_timeout_s=30.0, launch_retries=0, prepare=prepare, preparing=preparing
    ) as pool:
        with pytest.raises(ConnectFailed) as told:
            await pool.ready()
        assert anyio.current_time() == pytest.approx(30.0, abs=2)
        causes = {failed["node"]: failed["cause"] for failed in pool.seen.all("node_failed")}
        assert causes == {
            0: "not ready within 30 s: its address is still unknown",
            1: "not ready within 30 s: connection refused",
            2: "not ready within 30 s: it answered, and packages had taken 25 s, at last: downloading torch",
        }
        (note,) = told.value.__notes__
        assert note.startswith("Of 4 nodes, after their boot_timeout of 30 s, 1 was ")
        for where in (NO_ADDRESS, NO_ANSWER, "at the step 'packages'"):
            assert f"1 was {where}" in note
        assert note.endswith("1 is ready.")


@pytest.mark.anyio
async def test_a_node_that_is_being_prepared_is_not_told_as_the_try_before(rig) -> None:
    """The last error before it was let in is no reason any more."""

    def prepare(site) -> None:
        site.refuse[NodeId(0)] = [ConnectFailed("connection refused"), ConnectFailed("connection refused")]
        site.prepare_s |= {NodeId(0): 1e6}

    async with rig(desired=1, boot_timeout_s=30.0, launch_retries=0, prepare=prepare) as pool:
        await anyio.sleep(0.05)
        pool.site.refuse.clear()
        with pytest.raises(ConnectFailed, match="not ready within 30 s: it answered, and was being prepared"):
            await pool.ready()
