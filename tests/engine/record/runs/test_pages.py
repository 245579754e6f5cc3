"""Events go to one file, prints to the log of their rank or node, and both make the status."""

from __future__ import annotations

from outrider.actors import events as ev
from outrider.engine.api.sink import Spending
from outrider.engine.record.runs.lines import EVENTS, parsed_events
from outrider.engine.record.runs.status import RunStatus
from outrider.engine.record.runs.writer import Happened, Pages


def pages() -> Pages:
    return Pages(RunStatus("id", "train", 99.0))


def test_prints_are_by_rank_with_a_mark_where_a_generation_begins(broadcast: list[Happened]) -> None:
    written = pages()
    for each in broadcast:
        written.add(each)
    text = {path: lines.decode() for path, lines in written.taken().items()}
    assert sorted(text) == [EVENTS, "logs/node-001.log", *(f"logs/rank-00{rank}.log" for rank in range(4))]
    assert text["logs/rank-001.log"].splitlines() == [
        "1970-01-01T00:01:42.000Z outrider train: generation 1 begins, rank 1 on node 0",
        "1970-01-01T00:01:43.000Z stdout loss 0.5",
        "1970-01-01T00:01:43.000Z stdout loss 0.4",
        "1970-01-01T00:01:45.000Z outrider train: generation 2 begins, rank 1 on node 2",
    ]
    assert text["logs/rank-003.log"].splitlines()[-2:] == [
        "1970-01-01T00:01:46.000Z outrider 7 bytes were lost here",
        "1970-01-01T00:01:46.000Z stderr done",
    ]
    assert text["logs/node-001.log"] == "1970-01-01T00:01:47.000Z stdout [f #2] alone\n"
    events = [each["event"] for each in parsed_events(text[EVENTS].encode())]
    assert len(events) == 12
    assert not {"task_output", "unfinished_line"} & {*events}
    assert written.taken() == {}


def test_a_lost_rank_that_runs_again_alone_is_on_its_node(broadcast: list[Happened]) -> None:
    written = pages()
    for each in broadcast[:6]:
        written.add(each)
    written.taken()
    written.add(Happened(ev.GenerationStarted(1, 2, (0, 5), (3,)), 1.0))
    (path, line), _ = sorted(written.taken().items(), reverse=True)
    assert (path, line.decode().partition("outrider ")[2]) == (
        "logs/rank-003.log",
        "train: generation 2 begins, rank 3 on node 5\n",
    )


def test_a_broadcast_to_one_node_has_a_rank_and_what_came_late_has_no_function() -> None:
    written = pages()
    written.add(Happened(ev.BroadcastSubmitted(1), 1.0, "train"))
    written.add(Happened(ev.TaskOutput(1, 0, 0, "stdout", "a\x1b[31mb\rc\n", "train"), 1.0))
    written.add(Happened(ev.TaskOutput(0, 0, 0, "stdout", "late"), 1.0))
    text = written.taken()
    assert text["logs/rank-000.log"].decode().split(" ", 1)[1] == "stdout c\n"
    assert text["logs/node-000.log"].decode().split(" ", 1)[1] == "stdout late\n"


def test_no_secret_is_printed() -> None:
    written = Pages(RunStatus("id", "train", 0.0), lambda text: text.replace("hunter2", "****"))
    written.add(Happened(ev.TaskOutput(1, 0, 0, "stdout", "hunter2!\n", "f"), 1.0))
    written.add(Happened(ev.NodeLost(0, "hunter2?"), 1.0))
    assert b"hunter2" not in b"".join(written.taken().values())


def test_the_status_follows_the_events(broadcast: list[Happened]) -> None:
    status = RunStatus("id", "train", 99.0)
    seen = []
    for event, at, _ in broadcast:
        status.apply(event, at)
        seen.append((status.state, len(status.ready), status.generation))
    assert seen[0] == ("starting", 0, 0)
    assert seen[3] == ("running", 2, 0)
    assert seen[7] == ("running", 1, 1)
    assert seen[-1] == ("closing", 2, 2)
    assert (status.most, status.wanted, status.changed, status.provider) == (2, 2, 108.0, "local")
    status.end(110.0, 1, "ValueError")
    said = status.facts(111.0, 1.5, 3.0)
    assert (said["state"], said["exit"], said["error"], said["nodes"], said["hourly_usd"]) == (
        "ended",
        1,
        "ValueError",
        0,
        0.0,
    )


def test_nodes_that_leave_or_stand_by_are_not_counted() -> None:
    status = RunStatus("id", "train", 0.0)
    for node in range(4):
        status.apply(ev.NodeReady(node, node, node + 1, 4), 1.0)
    for event in (ev.NodeDismissed(0), ev.NodeFailed(1), ev.NodeStandby(2), ev.NodeSuspect(3), ev.PoolResized(9)):
        status.apply(event, 2.0)
    assert (status.ready, status.most, status.wanted) == ({3}, 4, 9)


def test_what_machines_cost_goes_on_between_events() -> None:
    assert Spending(1.0, 3.6, 1000.0).until(2000.0) == 2.0
    assert Spending(1.0, 3.6, 1000.0).until(900.0) == 1.0
