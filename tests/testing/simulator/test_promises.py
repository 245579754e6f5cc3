"""Each promise of the simulator falls when its guard is taken out of the engine, and by that number."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, count
from pathlib import Path

import pytest

from outrider.testing.simulator.draw import draw
from outrider.testing.simulator.play import play
from outrider.testing.simulator.rules.promises import PROMISES
from outrider.testing.simulator.scenario import Scenario

from . import guards, own_scenarios

SEEDS = 2000  # at most; most promises fall within twenty
Patch = pytest.MonkeyPatch

BY_HAND: dict[Callable[[Patch], None], Callable[[int], Scenario]] = {
    guards.leaves_seats_to_tasks: own_scenarios.busy_with_a_spare,
    guards.blames_every_executor_that_ends: own_scenarios.used_and_barren,
    guards.leaves_ranks_that_were_to_run_again: own_scenarios.stalls_with_a_node_lost,
    guards.counts_stalls_as_losses: own_scenarios.lost_after_its_stall,
    guards.takes_the_attempt_after_a_loss_for_stalled: own_scenarios.lost_before_its_stall_ends_it,
    guards.forgets_stalls_after_a_loss: own_scenarios.stall_cut_short_by_a_loss,
    guards.forgets_a_broadcast_stall_after_a_loss: own_scenarios.broadcast_stall_cut_short_by_a_loss,
    guards.lets_the_boot_begin_in_the_queue: own_scenarios.queued,
    guards.calls_what_is_queued_late: own_scenarios.queued,
    guards.waits_for_no_queue: own_scenarios.queued,
    guards.counts_no_late_machine_that_is_being_ended: own_scenarios.late_one_after_another,
    guards.takes_a_wait_for_over_that_ended_before_the_fence: own_scenarios.fenced_late,
    guards.compares_no_ports: own_scenarios.hasty_broadcasts,
    guards.keeps_ports_of_ended_ranks: own_scenarios.hasty_broadcasts,
    guards.asks_for_ports_once: own_scenarios.hasty_broadcasts,
}
# The seeds at which those fall that take the search seconds. Where one does not any more, the search finds another.
FALLS_AT: dict[Callable[[Patch], None], int] = {
    guards.runs_at_most_once_again: 7,
    guards.does_not_fence: 13,
    guards.runs_beside_the_slots: 9,
    guards.blames_nobody: 9,
    guards.forgets_what_comes_back: 8,
    guards.goes_on_with_fewer: 10,
    guards.promotes_nobody: 16,
    guards.waits_for_whoever_is_silent: 8,
    guards.believes_every_node: 46,
    guards.starts_workers_for_ever: 9,
    guards.gives_up_at_the_first_failed_start: 9,
    guards.keeps_what_is_too_many: 12,
    guards.counts_no_launch_without_an_answer: 8,
    guards.knows_no_most: 10,
    guards.lets_the_busy_go: 12,
    guards.holds_what_is_not_there: 7,
    guards.heeds_no_sign_of_life: 12,
    guards.knows_no_queue_timeout: 15,
    guards.forgets_whoever_waits_for_a_result: 107,
    guards.gives_up_what_it_may_make_again: 25,
    guards.mixes_the_sizes_of_two_makings: 25,
    guards.makes_a_result_again_for_each_who_asks: 625,
    guards.counts_no_remake: 137,
    guards.makes_again_what_nobody_waits_for: 25,
}


@pytest.mark.parametrize(
    ("promise", "without"),
    [
        ("SIM-1", guards.settles_twice),
        pytest.param("SIM-1", guards.tells_each_rank_twice, marks=pytest.mark.nightly),
        pytest.param("SIM-2", guards.keeps_results_of_lost_generations, marks=pytest.mark.nightly),
        pytest.param("SIM-2", guards.takes_an_ending_back, marks=pytest.mark.nightly),
        ("SIM-2", guards.ends_attempts_before_their_timeout),
        ("SIM-3", guards.runs_at_most_once_again),
        ("SIM-3", guards.counts_stalls_as_losses),
        ("SIM-3", guards.takes_the_attempt_after_a_loss_for_stalled),
        ("SIM-4", guards.takes_any_port),
        ("SIM-5", guards.does_not_fence),
        ("SIM-6", guards.sends_to_closed_nodes),
        ("SIM-7", guards.runs_beside_the_slots),
        ("SIM-8", guards.blames_nobody),
        ("SIM-9", guards.forgets_what_comes_back),
        ("SIM-9", guards.leaves_ranks_that_were_to_run_again),
        ("SIM-10", guards.goes_on_with_fewer),
        ("SIM-11", guards.replaces_nothing),
        ("SIM-12", guards.terminates_nothing),
        ("SIM-13", guards.forgets_what_it_asked_for),
        pytest.param("SIM-14", guards.waits_for_the_death, marks=pytest.mark.nightly),
        ("SIM-14", guards.promotes_nobody),
        pytest.param("SIM-15", guards.never_blames_the_network, marks=pytest.mark.nightly),
        ("SIM-16", guards.waits_out_every_lease),
        pytest.param("SIM-17", guards.tells_nobody_who_left, marks=pytest.mark.nightly),
        ("SIM-18", guards.leaves_connections_open),
        ("SIM-19", guards.leaves_seats_to_tasks),
        ("SIM-20", guards.has_a_hole_in_its_table),
        ("SIM-21", guards.waits_for_whoever_is_silent),
        ("SIM-22", guards.believes_every_node),
        ("SIM-23", guards.starts_workers_for_ever),
        ("SIM-23", guards.gives_up_at_the_first_failed_start),
        ("SIM-24", guards.keeps_what_is_too_many),
        ("SIM-25", guards.blames_every_executor_that_ends),
        ("SIM-26", guards.counts_no_launch_without_an_answer),
        ("SIM-26", guards.counts_machines_from_the_answer_on),
        ("SIM-27", guards.knows_no_most),
        ("SIM-28", guards.lets_the_busy_go),
        ("SIM-29", guards.keeps_what_is_idle),
        ("SIM-30", guards.holds_what_is_not_there),
        ("SIM-31", guards.heeds_no_sign_of_life),
        ("SIM-31", guards.restarts_what_has_stalled_for_ever),
        ("SIM-31", guards.forgets_stalls_after_a_loss),
        ("SIM-31", guards.forgets_a_broadcast_stall_after_a_loss),
        ("SIM-32", guards.lets_the_boot_begin_in_the_queue),
        ("SIM-32", guards.calls_what_is_queued_late),
        ("SIM-32", guards.waits_for_no_queue),
        ("SIM-33", guards.counts_no_late_machine_that_is_being_ended),
        ("SIM-34", guards.takes_a_wait_for_over_that_ended_before_the_fence),
        ("SIM-35", guards.lets_what_is_given_up_run_on),
        ("SIM-36", guards.knows_no_timeout),
        ("SIM-36", guards.knows_no_queue_timeout),
        ("SIM-36", guards.knows_no_deadline),
        ("SIM-9", guards.forgets_whoever_waits_for_a_result),
        ("SIM-37", guards.gives_up_what_it_may_make_again),
        ("SIM-37", guards.mixes_the_sizes_of_two_makings),
        ("SIM-38", guards.makes_a_result_again_for_each_who_asks),
        ("SIM-38", guards.counts_no_remake),
        ("SIM-38", guards.makes_again_what_nobody_waits_for),
        ("SIM-39", guards.keeps_what_is_let_go),
        ("SIM-39", guards.remembers_calls_for_ever),
        ("SIM-40", guards.compares_no_ports),
        ("SIM-40", guards.keeps_ports_of_ended_ranks),
        ("SIM-9", guards.asks_for_ports_once),
        ("SIM-41", guards.counts_no_attempt_in_the_queue),
    ],
)
def test_a_promise_falls_without_its_guard(promise: str, without: Callable[[Patch], None], monkeypatch: Patch) -> None:
    without(monkeypatch)
    fell: dict[str, int] = {}
    scenario = BY_HAND.get(without, draw)
    for seed in chain([FALLS_AT.get(without, 0)], count()):
        violation = play(scenario(seed), keep=0).violation
        if violation is not None:
            fell.setdefault(violation.rule, seed)
        if promise in fell:
            break
        assert seed < SEEDS, f"only {fell} fell"


@pytest.mark.parametrize("scenario", dict.fromkeys(BY_HAND.values()))
def test_a_scenario_of_our_own_keeps_its_promises(scenario: Callable[[int], Scenario]) -> None:
    assert [play(scenario(seed)).violation for seed in range(20)] == [None] * 20


def test_every_promise_is_tested_so() -> None:
    (mark,) = test_a_promise_falls_without_its_guard.pytestmark  # type: ignore[attr-defined]
    assert {getattr(each, "values", each)[0] for each in mark.args[1]} == set(PROMISES)


def test_the_guide_lists_every_promise() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/testing-resilience.md").read_text()
    for promise, words in PROMISES.items():
        assert f"| {promise} | {words} |" in guide
