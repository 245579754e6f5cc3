"""A job's failures are told in a line each, once where ranks failed alike, and not what they brought with them."""

from __future__ import annotations

import pytest

from outrider.actors import events as ev
from outrider.actors.interfaces import Ending, GaveUp, NodeId, Reason, Settled, Verdict
from outrider.engine.client.job_failures import LINE_CHARS, failures
from outrider.engine.record.display.descriptions import failure_line
from outrider.engine.wire.messages import Cause, Ended, Failed


def raised(message: str, *, node: int = 2, rank: int = 0) -> Settled:
    failed = Failed(1, "call", "ValueError", message, "", None, 0)
    return Settled(Verdict.RAISED, (failed, None), NodeId(node), rank, 1, 0)


def ended(verdict: Verdict, cause: Cause, code: int = 0, *, rank: int = 0) -> Settled:
    return Settled(verdict, Ended(1, cause, code, ""), NodeId(2), rank, 1, 0)


@pytest.mark.parametrize(
    ("ending", "told"),
    [
        (raised("bad luck"), ["f #7 failed on node 2: ValueError: bad luck"]),
        (raised("two\nlines\x1b[2J"), ["f #7 failed on node 2: ValueError: two; lines"]),
        (raised(""), ["f #7 failed on node 2: ValueError"]),
        (ended(Verdict.DIED, Cause.EXIT, 3), ["f #7 failed on node 2: its process ended with exit status 3"]),
        (ended(Verdict.DIED, Cause.SIGNAL, 11), ["f #7 failed on node 2: it was killed by SIGSEGV"]),
        (ended(Verdict.DIED, Cause.SIGNAL, 1000), ["f #7 failed on node 2: it was killed by signal 1000"]),
        (ended(Verdict.DIED, Cause.MEMORY, 9), ["f #7 failed on node 2: it ran out of memory"]),
        (ended(Verdict.TIMED_OUT, Cause.TIMEOUT), ["f #7 failed on node 2: it ran longer than its timeout"]),
        (ended(Verdict.KILLED, Cause.KILLED), []),
        (Settled(Verdict.RETURNED, None, NodeId(2), 0, 1, 0), []),
        (GaveUp(Reason.CANCELLED), []),
        (GaveUp(Reason.LOST), []),  # that the node was lost has been told
    ],
)
def test_a_call_that_failed_has_a_line(ending: Ending, told: list[str]) -> None:
    assert [failure_line(event) for event in failures(7, "f", ending)] == told


def test_ranks_that_failed_alike_are_told_together() -> None:
    killed = ended(Verdict.KILLED, Cause.KILLED, rank=7)
    alike = [raised("no", rank=rank) for rank in range(6)]
    assert [failure_line(event) for event in failures(1, "train", [*alike, raised("yes", node=5, rank=6), killed])] == [
        "train: ranks 0, 1, 2, 3 and 2 more failed: ValueError: no",
        "train: rank 6 failed on node 5: ValueError: yes",
    ]


def test_a_long_message_is_cut() -> None:
    (event,) = failures(1, "f", raised("x" * 10_000))
    assert event == ev.JobFailed(1, "f", f"{'ValueError: ' + 'x' * 10_000:.{LINE_CHARS}}...", 2)
