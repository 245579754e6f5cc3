"""A storm takes its share of the machines within its time, and what was counted of the seats is what there is."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import outrider
from outrider.actors import membership
from outrider.engine.transport import instance_views
from outrider.testing.simulator import faults as f
from outrider.testing.simulator.draw import draw
from outrider.testing.simulator.play import play
from outrider.testing.simulator.rules.nodes import NodeRules
from outrider.testing.simulator.storm import storm


def test_a_storm_takes_its_share_of_the_nodes_within_a_minute():
    scenario = storm(1, nodes=40, share=0.3)
    played = play(scenario, keep=None)
    assert played.violation is None, "\n".join(played.trace)
    (began,) = (fault.at_s for fault in scenario.faults)
    taken = [float(line.split()[0]) for line in played.trace if " machine_lost " in line]
    assert len(taken) == played.events["node_lost"] == 12, "none of them twice"
    assert all(began <= at <= began + 60.0 for at in taken)
    assert played.faults["Notice"] + played.faults["Death"] == 12
    assert played.events["node_noticed"] == played.faults["Notice"] > 0
    assert sum(played.endings.values()) == 400


def test_two_sizes_differ_in_nothing_but_their_nodes_and_tasks():
    small, large = storm(3, nodes=20, share=0.5), storm(3, nodes=50, tasks=100, share=0.5)
    assert (len(small.jobs), len(large.jobs)) == (200, 100)
    assert (small.cloud, small.faults) == (large.cloud, large.faults)
    assert small.jobs[:100] == large.jobs


def test_without_a_share_there_is_no_storm():
    assert storm(1, nodes=3, tasks=5).faults == ()


@pytest.mark.parametrize(
    "scenario", [*map(draw, range(12)), storm(2, nodes=20, share=0.5)], ids=lambda scenario: str(scenario.seed)
)
def test_what_the_rules_count_at_every_step_is_what_there_is(scenario, monkeypatch):
    """Their counts follow each event, so that a step of a large pool takes no longer than one of a small pool."""
    at_rest, rests = NodeRules.at_rest, Counter[str]()

    def counts_anew(self):
        sim, seats = self._sim, self.seats.values()
        alive, cloud = sim.cloud.alive, sim.cloud
        assert +self.states == Counter(seat.state for seat in seats)
        assert self._present == sum(seat.present for seat in seats)
        assert self._working == sum(seat.state == "ready" and not seat.notices for seat in seats)
        assert self._standby.keys() == {seat.node for seat in seats if seat.state == "standby"}
        assert self._late.keys() == {seat.machine for seat in seats if seat.late and seat.machine in alive}
        assert self._leaving.keys() == {seat.machine for seat in seats if not seat.present and seat.machine in alive}
        assert cloud.running == alive.keys() - cloud.answering - cloud.queued
        jobs = sim.referee.jobs
        on, of = jobs.running_on, jobs.running_of
        assert {attempt: host for host, attempts in on.items() for attempt in attempts} == jobs.running
        assert {attempt: host for attempts in of.values() for attempt, host in attempts.items()} == jobs.running
        rests["number"] += 1
        at_rest(self)

    monkeypatch.setattr(NodeRules, "at_rest", counts_anew)
    played = play(scenario)
    assert played.violation is None, "\n".join(played.trace)
    assert rests["number"] >= played.steps > 0


@pytest.mark.parametrize("seed", range(20, 32))
def test_every_promise_holds_where_nodes_are_told_of_their_peers_for_broadcasts_alone(seed, monkeypatch):
    """As in pools of more than a thousand nodes; here in those of two and more."""
    monkeypatch.setattr(membership, "NAMED_MOST", 1)
    monkeypatch.setattr(instance_views, "NAMED_MOST", 1)
    played = play(draw(seed))
    assert played.violation is None, "\n".join(played.trace)


def test_a_storm_of_which_nobody_is_told():
    fault = f.Storm(at_s=70.0, share=0.5, within_s=5.0, noticed=0.0)
    played = play(replace(storm(1, nodes=6, tasks=20), faults=(fault,)))
    assert played.violation is None, "\n".join(played.trace)
    assert (played.faults["Death"], played.events["node_noticed"], played.events["node_lost"]) == (3, 0, 3)


def lines_for_each_step(nodes):
    """Play a storm; return how many lines of Outrider ran for each step. Each turn of a loop runs its lines anew."""
    lines, ours = 0, str(Path(outrider.__file__).parent)

    def line(frame, event, argument):
        nonlocal lines
        lines += 1
        return line

    def call(frame, event, argument):
        return line if frame.f_code.co_filename.startswith(ours) else None

    scenario, before = storm(1, nodes=nodes, tasks=nodes // 4, share=0.3), sys.gettrace()
    sys.settrace(call)
    try:
        played = play(scenario)
    finally:
        sys.settrace(before)
    assert played.violation is None, "\n".join(played.trace)
    return lines / played.steps


def test_a_step_of_a_pool_of_ten_times_as_many_nodes_takes_no_more_lines(monkeypatch):
    """Whoever walks over all nodes, tasks or machines for each event makes this fail: in the rules or in the actors.

    A view that names all nodes is such a walk, and has its limit; how often nodes are told of others depends on how
    many there are. A walk that is not written in Python, as a sum over a dictionary, is not seen here.
    """
    monkeypatch.setattr(membership, "NAMED_MOST", 32)
    monkeypatch.setattr(instance_views, "NAMED_MOST", 32)
    monkeypatch.setattr(membership.Membership, "view_delay_s", lambda _: 5.0)
    few, many = lines_for_each_step(20), lines_for_each_step(200)
    assert many <= few


@pytest.mark.nightly
def test_ten_thousand_nodes_with_a_hundred_thousand_tasks_survive_a_storm():
    """It takes two minutes of a core, and 1.2 GiB."""
    played = play(storm(0, nodes=10_000, tasks=100_000, share=0.3))
    assert played.violation is None, "\n".join(played.trace)
    assert sum(played.endings.values()) == 100_000
    assert played.events["node_lost"] == 3000
    assert played.events["node_ready"] == played.machines == 13_000
