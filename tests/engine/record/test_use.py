"""What people read of how well the nodes of a run were used."""

from __future__ import annotations

from dataclasses import replace

from outrider.actors import events as ev
from outrider.engine.record.run_tables import Use, use_of
from outrider.engine.record.runs.lines import event_line, events_in

USED = [
    ev.NodeUsed(0, "p/1-0", 3600.0, 4.0, 6220.8, 812_000_000, 4_000_000_000),
    ev.NodeUsed(1, "p/1-1", 60.0, 4.0, 2.4, 812_000_000, None),
    ev.NodeUsed(2, "p/1-2", 0.0, 0.0, 0.0, None, None),
    ev.PoolUsed(3, 0.4321, 0.2, "a node is lost"),
]
ROWS = [
    ("0", "p/1-0", "43 % of 4", "20 %: 812 MB of 4.0 GB", "1:00:00"),
    ("1", "p/1-1", "1.0 % of 4", "812 MB, without a limit", "1:00"),
    ("2", "p/1-2", "not known", "not known", "0.0 s"),
]


def test_each_node_has_a_row_and_all_have_a_sentence():
    assert use_of(USED) == Use(
        ["3 nodes have used 43 % of their processors and 20 % of their memory; not known of all: a node is lost."],
        ROWS,
    )


def test_why_nothing_is_known_is_one_sentence():
    assert use_of([ev.PoolUsed(0, None, None, "the cluster keeps no accounting")]) == Use(
        ["How well the nodes were used is not known: the cluster keeps no accounting."], []
    )


def test_a_run_whose_provider_does_not_count_has_nothing():
    assert use_of([ev.PoolClosed()]) == Use([], [])


def test_it_is_read_from_a_record_as_it_was_told():
    read = list(events_in(b"".join(event_line(each, 1.0, "", str) for each in USED)))
    assert [replace(each, at=0.0) for each in read] == USED
