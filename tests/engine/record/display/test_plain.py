"""What people read of events."""

from __future__ import annotations

import time

import pytest

from outrider.actors import events as ev
from outrider.engine.api.quantities import count, seconds
from outrider.engine.record.display.descriptions import NEWS, QUEUE_S, Descriptions, describe
from outrider.engine.record.display.plain import PlainSink


def at_local(hour: int, minute: int = 0) -> float:
    """That time of the 2nd of March 2026, here."""
    return time.mktime((2026, 3, 2, hour, minute, 0, 0, 0, -1))


def test_the_story_reads_well(story: list[ev.Event]) -> None:
    assert [line for event in story if (line := describe(event))] == [
        "starting 2 nodes (local)",
        "2 of 2 nodes ready after 0.2 s",
        "node 0 lost: killed by signal 9",
        "task 1 runs again, attempt 2: killed by signal 9",
    ]


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (ev.LaunchFailed("no capacity", 2, 1.5), "launch failed: no capacity; next try in 1.5 s"),
        (ev.LaunchFailed("no capacity", 5), "launch failed: no capacity; not tried again"),
        (ev.BudgetMostlySpent(8.004, 10.0, 2.5), "8.00 of 10.00 USD are spent, at 2.50 USD per hour"),
        (
            ev.NodeLate(3, 21.04, 6.2),
            "node 3 has not answered in 21.0 s, others took 6.2 s: another machine is asked for",
        ),
        (ev.NodeQueued(3, "job 4711 pending: Priority"), "in the queue: job 4711 pending: Priority"),
        (ev.NodeQueued(3, "a\nb", at_local(14, 20), at=at_local(9)), "in the queue: a; b, expected 14:20"),
        (ev.NodeQueued(3, "full", at_local(38), at=at_local(9)), "in the queue: full, expected 2026-03-03 14:00"),
        (ev.NodeQueued(3, "full", 1e300, at=at_local(9)), "in the queue: full, expected at no known time"),
        (ev.NodeStarted(3, 60.0), None),
        (ev.PoolUsed(2, 0.4321, 0.05), "2 nodes have used 43 % of their processors and 5.0 % of their memory"),
        (ev.PoolUsed(1, 0.4321, None), "1 node has used 43 % of its processors"),
        (ev.PoolUsed(0, None, None, "no accounting"), None),
        (
            ev.PoolUsed(1, 1.0, 1.0, "c1 is lost"),
            "1 node has used 100 % of its processors and 100 % of its memory; not known of all: c1 is lost",
        ),
        (ev.NodeNoticed(3, "spot", 120.0), "node 3 will be taken in 2:00 (spot)"),
        (ev.GenerationLost(7, 1, (2, 3), "gone"), "broadcast 7 lost nodes 2, 3: gone"),
        (ev.GenerationStarted(7, 2, (0, 1), (0, 1)), "broadcast 7 runs again on 2 ranks, generation 2"),
        (ev.GenerationStarted(7, 1, (0, 1), (0, 1)), None),
        (ev.BroadcastWaits(7, "free ports of node 3", 10.0), "broadcast 7 has waited 10.0 s for free ports of node 3"),
        (
            ev.BroadcastWaits(7, "2 of 4 nodes to be ready", 75.0, "train", ended=True),
            "broadcast train waits no more: after 1:15 for 2 of 4 nodes to be ready",
        ),
        (ev.NodeLost(1), "node 1 lost: unknown cause"),
        (ev.NodeLost(1, "two\nlines\x1b[2J"), "node 1 lost: two; lines"),
        (
            ev.RemakeStarted(7, 2, "step", 1, 3),
            "what step has returned on node 2 is not there any more, and is made again (1 of at most 3 times)",
        ),
    ],
)
def test_each_event_is_described_in_one_line(event: ev.Event, line: str | None) -> None:
    assert describe(event) == line


def test_what_the_machines_of_one_job_wait_for_is_told_once() -> None:
    lines = Descriptions()
    told = [lines.line(ev.NodeQueued(node, "Priority")) for node in range(4)]
    assert told == ["in the queue: Priority", None, None, None]
    assert [lines.line(ev.NodeQueued(node, "Resources")) for node in range(2)] == ["in the queue: Resources", None]
    assert lines.line(ev.NodeStarted(0)) is None
    assert lines.line(ev.NodeQueued(5, "Resources")) == "in the queue: Resources", "of another job"


def test_broadcasts_that_wait_for_the_same_have_one_line() -> None:
    lines = Descriptions()

    def waits(job: int, waited_s: float, reason: str = "a slot", *, ended: bool = False) -> bool:
        return lines.line(ev.BroadcastWaits(job, reason, waited_s, ended=ended)) is not None

    assert [waits(1, 10.0), waits(2, 10.0), waits(3, 10.0, "ports"), waits(1, 20.0)] == [True, False, True, True]
    assert [waits(1, 25.0, ended=True), waits(2, 26.0, ended=True), waits(4, 10.0)] == [True, False, True]


def test_what_a_scheduler_recalculates_for_many_machines_has_a_line_at_times() -> None:
    lines = Descriptions()
    at = at_local(9)
    for node in range(50):  # each is a job
        lines.line(ev.NodeQueued(node, f"job {node} pending: Priority", at=at))
    told = list[str | None]()
    for second in range(1, 301):
        for node in range(50):
            reason = f"job {node} pending: {'Resources' if second % 60 == 0 else 'Priority'}"
            told.append(lines.line(ev.NodeQueued(node, reason, at_local(14, 20 + node + second // 60), at=at + second)))
    assert 300 / QUEUE_S - 1 <= len(shown := [line for line in told if line]) <= 300 / QUEUE_S * NEWS
    assert shown[0] == "50 machines are in the queue: job 0 pending: Resources, first expected 14:21"


def test_an_expected_start_that_moves_has_a_line_at_times() -> None:
    lines = Descriptions()
    at = at_local(9)
    told = [lines.line(ev.NodeQueued(0, "Priority", at_local(14, minute), at=at + minute)) for minute in range(60)]
    assert [line for line in told if line] == ["in the queue: Priority, expected 14:00"]
    assert (
        lines.line(ev.NodeQueued(0, "Resources", at_local(15), at=at + 60)) == "in the queue: Resources, expected 15:00"
    )
    moved = [lines.line(ev.NodeQueued(node, "Resources", at_local(16), at=at + 60 + QUEUE_S)) for node in (0, 1)]
    assert moved == ["in the queue: Resources, expected 16:00", None]
    line = lines.line(ev.NodeQueued(1, "Resources", at_local(17), at=at + 60 + 2 * QUEUE_S))
    assert line == "2 machines are in the queue: Resources, first expected 16:00"
    lines.line(ev.NodeStarted(0))
    assert (
        lines.line(ev.NodeQueued(1, "Priority", at_local(18), at=at + 400)) == "in the queue: Priority, expected 18:00"
    )


def test_large_arguments_have_a_line_at_first_at_times_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    sink = PlainSink()
    for number in range(50):
        sink(ev.UploadProgress(4, 24_000_000 * number, 1_200_000_000, 0.5 + 0.5 * number, at=100.0 + 0.5 * number))
    sink(ev.UploadProgress(4, 1_200_000_000, 1_200_000_000, 25.0, ended=True, at=125.0))
    sink(ev.UploadProgress(1, 10, 100_000_000, 1.0, at=126.0))
    sink(ev.UploadProgress(1, 0, 0, 2.0, ended=True, at=127.0))  # its node is lost
    sink.close()
    assert capsys.readouterr().err.splitlines() == [
        "outrider: sending 1.2 GB of arguments to 4 nodes: 0 %, 0 B/s",
        "outrider: sending 1.2 GB of arguments to 4 nodes: 40 %, 45.7 MB/s",
        "outrider: sending 1.2 GB of arguments to 4 nodes: 80 %, 46.8 MB/s",
        "outrider: 1.2 GB of arguments to 4 nodes took 25.0 s: 48.0 MB/s",
        "outrider: sending 100 MB of arguments to 1 node: 0 %, 10 B/s",
    ]


def test_a_cause_is_told_once() -> None:
    cause = "not ready within 5 s: 10.0.0.1 port 22 cannot be reached"
    lines = Descriptions()
    story = [
        ev.NodeFailed(0, cause),
        ev.LaunchFailed(cause, 1, 0.6),
        ev.NodeFailed(1, cause),
        ev.LaunchFailed(f"1 of the 1 given hosts did not answer: {cause}; wait longer", 2),
        ev.NodeFailed(2, "another one"),
    ]
    assert [lines.line(event) for event in story] == [
        f"node 0 did not start: {cause}",
        "launch failed: the same as for node 0; next try in 0.6 s",
        "node 1 did not start: the same as for node 0",
        "launch failed: 1 of the 1 given hosts did not answer: the same as for node 0; wait longer; not tried again",
        "node 2 did not start: another one",
    ]


def test_a_short_cause_is_not_looked_for_in_others() -> None:
    lines = Descriptions()
    told = [lines.line(ev.NodeFailed(node, cause)) for node, cause in enumerate(["gone", "it is gone", "", ""])]
    assert told == [
        "node 0 did not start: gone",
        "node 1 did not start: it is gone",
        "node 2 did not start: unknown cause",
        "node 3 did not start: unknown cause",
    ]


def test_numbers_for_people() -> None:
    assert (count(1, "node"), count(2000, "node")) == ("1 node", "2,000 nodes")
    assert (seconds(0.25), seconds(61), seconds(3725)) == ("0.2 s", "1:01", "1:02:05")
