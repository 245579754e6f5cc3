"""A simulated pool keeps its promises, does the same every time, and does what its scenario says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest

from outrider.actors.interfaces import OnLoss
from outrider.testing.simulator import faults as f
from outrider.testing.simulator.draw import LARGE, draw
from outrider.testing.simulator.play import play
from outrider.testing.simulator.scenario import CloudSpec, Job, Scenario

IN_EVERY_PROCESS = 15  # seeds: a play takes 0.1 s of a core
DIGESTS = "from outrider.testing import draw, play; print([play(draw(seed)).digest for seed in range({})])"
QUICK = CloudSpec(boot_s=(20.0, 20.0), launch_s=(1.0, 1.0), latency_s=(0.001, 0.001))


@cache
def digest(seed):
    return play(draw(seed)).digest


@pytest.mark.parametrize("seed", range(120))
def test_every_promise_holds(seed):
    played = play(draw(seed))
    assert played.violation is None, "\n".join(played.trace)


@pytest.mark.parametrize("seed", [714, 977])
def test_what_an_attempt_was_to_be_given_is_freed_when_its_node_is_lost_before(seed):
    """Each is what a closed link kept, for an attempt that it had not sent."""
    played = play(draw(seed))
    assert played.violation is None, "\n".join(played.trace)


def test_loss_of_a_stalled_node_counts_as_no_restart_for_the_stall():
    """In this seed the pool sends no events about tasks, so no event has the cause of the task's next run."""
    played = play(draw(6148))
    assert played.violation is None, "\n".join(played.trace)


def test_the_same_seed_is_the_same_run_in_every_process():
    """Whatever the hashes of texts and the addresses of objects are."""
    runs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS.format(IN_EVERY_PROCESS)],
            env={**os.environ, "PYTHONHASHSEED": hashes},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashes in ("1", "2")
    ]
    assert runs[0] == runs[1] == f"{[digest(seed) for seed in range(IN_EVERY_PROCESS)]}\n"


def test_other_seeds_are_other_runs():
    assert len({digest(seed) for seed in range(40)}) == 40


def test_a_thousand_nodes_are_played():
    played = play(draw(5, nodes=1000, span_s=60.0))
    assert played.violation is None, "\n".join(played.trace)
    assert played.machines >= 1000
    assert played.scenario.nodes >= LARGE


def scenario(*faults, jobs=(), **options):
    options = {"seed": 1, "nodes": 4, "min": 4, "max": 4, "cloud": QUICK} | options
    return Scenario(faults=faults, jobs=tuple(Job(id=number, **job) for number, job in enumerate(jobs, 1)), **options)


def test_only_faults_that_happen_are_counted():
    """Not one that comes before there is anybody, nor one after something that does not happen."""
    early, never = f.Death(at_s=0.5, who="head"), f.Reset(at_s=0.0, who=0.0, after=("node_lost", 9))
    played = play(scenario(early, never, f.ClientCut(at_s=40.0, for_s=5.0)))
    assert played.violation is None
    assert played.faults == {"ClientCut": 1}


TRAINING = {"at_s": 30.0, "takes_s": 100.0, "ranks": 1}


def test_an_undisturbed_broadcast_is_one_generation():
    played = play(scenario(jobs=[TRAINING]))
    assert played.violation is None
    assert (played.generations, played.machines, dict(played.endings)) == (1, 4, {"returned": 4})


@pytest.mark.parametrize("who", ["head", 0.99])
def test_a_lost_rank_brings_a_new_generation_after_the_boot(who):
    played = play(scenario(f.Death(at_s=60.0, who=who, reported_s=0.1), jobs=[TRAINING]))
    assert played.violation is None
    assert (played.generations, played.machines) == (2, 5)
    (took_s,) = played.recoveries_s
    assert 20.0 <= took_s <= 20.0 + 3.0


def test_with_a_spare_node_it_takes_no_boot():
    played = play(scenario(f.Death(at_s=60.0, who="head", reported_s=0.1), jobs=[TRAINING], spare=1))
    assert played.violation is None
    assert played.events["node_standby"] == 2, "and the next one stands by"
    (took_s,) = played.recoveries_s
    assert took_s <= 1.0


def test_two_losses_at_once_are_one_new_generation():
    deaths = [f.Death(at_s=60.0, who=who, reported_s=0.1) for who in (0.0, 0.5)]
    played = play(scenario(*deaths, jobs=[TRAINING], spare=2))
    assert played.violation is None
    assert (played.generations, played.events["node_lost"]) == (2, 2)


def test_an_elastic_pool_goes_on_with_fewer_when_its_time_is_up():
    faults = [f.Drought(at_s=50.0, for_s=1000.0), f.Death(at_s=60.0, who="head", reported_s=0.1)]
    played = play(scenario(*faults, jobs=[TRAINING], min=2, replace_timeout_s=100.0))
    assert played.violation is None
    assert (played.generations, dict(played.endings)) == (2, {"returned": 3})
    assert played.recoveries_s == (pytest.approx(100.0, abs=1.0),)


def test_a_fixed_one_says_so():
    faults = [f.Drought(at_s=50.0, for_s=1000.0), f.Death(at_s=60.0, who="head", reported_s=0.1)]
    played = play(scenario(*faults, jobs=[TRAINING], replace_timeout_s=100.0))
    assert played.violation is None
    assert dict(played.endings) == {"no_replacement": 4}


def test_a_client_that_is_cut_off_for_a_minute_loses_nothing_and_runs_nothing_twice():
    tasks = [{"at_s": 30.0, "takes_s": 40.0, "once": True, "retries": 0} for _ in range(4)]
    played = play(scenario(f.ClientCut(at_s=40.0, for_s=60.0), jobs=tasks))
    assert played.violation is None
    assert dict(played.endings) == {"returned": 4}
    assert (played.events["node_lost"], played.machines) == (0, 4)


def test_longer_than_the_lease_and_the_nodes_end_themselves():
    tasks = [{"at_s": 30.0, "takes_s": 400.0, "once": True, "retries": 0}]
    played = play(scenario(f.ClientCut(at_s=40.0, for_s=300.0), jobs=tasks), keep=None)
    assert played.violation is None
    assert sum("lease_over" in line for line in played.trace) == 4
    assert dict(played.endings) == {"lost": 1}


@pytest.mark.parametrize("how", ["dark", "deaf", "refuses"])
def test_machines_that_do_not_answer_cost_one_more_boot_and_not_the_boot_timeout(how):
    bad = f.BadMachines(at_s=0.0, machines=2, how=how)
    played = play(scenario(bad, jobs=[{"at_s": 0.0, "takes_s": 1.0, "ranks": 1}], nodes=8, min=8, max=8), keep=None)
    assert played.violation is None
    (ready,) = (line for line in played.trace if " pool_ready " in line)
    assert 49.0 < float(ready.split()[0]) < 52.0, "20 s for the others, 10 s until it is late, 20 s for another"
    assert (played.machines, played.events["node_late"], played.events["node_dismissed"]) == (10, 2, 2)


def test_one_that_answers_late_works_and_its_replacement_is_ended():
    slow = f.Partition(at_s=1.0, after=("node_launching", 4), who="newest", for_s=45.0)
    played = play(scenario(slow))
    assert played.violation is None
    assert (played.machines, played.events["node_late"], played.events["node_dismissed"]) == (5, 1, 1)
    assert played.events["node_failed"] == 0


def test_a_notice_that_is_withdrawn_replaces_nothing_twice():
    notice = f.Notice(at_s=60.0, who=0.0, then="withdrawn", after_s=5.0)
    played = play(scenario(notice, jobs=[TRAINING]))
    assert played.violation is None
    assert (played.events["node_notice_withdrawn"], played.machines, played.generations) == (1, 5, 1)


def test_failures_of_its_own_are_run_again_as_often_as_allowed():
    played = play(
        scenario(jobs=[TRAINING | {"ends": "raises", "max_restarts": 2, "takes_s": 5.0, "collective": False}])
    )
    assert played.violation is None
    assert (played.generations, played.events["node_lost"]) == (3, 0)


def test_losses_in_a_loop_end():
    poison = {"at_s": 30.0, "takes_s": 5.0, "ranks": 1, "ends": "poison", "retries": 3}
    played = play(scenario(jobs=[poison]))
    assert played.violation is None
    assert (played.generations, set(played.endings)) == (4, {"losing"})


@pytest.mark.parametrize("on_loss", list(OnLoss))
def test_what_users_choose_is_what_happens(on_loss):
    broadcast = TRAINING | {"on_loss": on_loss, "collective": False}
    played = play(scenario(f.Death(at_s=60.0, who=0.0, reported_s=0.1), jobs=[broadcast]), keep=None)
    assert played.violation is None
    began = Counter(line.split("rank=")[1].split()[0] for line in played.trace if " began " in line)
    assert sum(began.values()) == {OnLoss.RESTART: 8, OnLoss.RESEND: 5, OnLoss.FAIL: 4}[on_loss]
    assert played.endings["lost"] == (on_loss is OnLoss.FAIL)


@pytest.mark.parametrize("fault", [None, f.Death(at_s=90.0, who=0.3), f.ClientCut(at_s=90.0, for_s=30.0)])
def test_a_pool_by_load_goes_from_none_to_eight_and_back_under_a_queue_and_does_so_again(fault):
    """Whatever happens meanwhile, no job is lost as it shrinks, and it does not grow on the way down."""
    jobs = [{"at_s": at, "takes_s": 30.0} for at in (10.0, 900.0) for _ in range(40)]
    faults = () if fault is None else (fault,)
    played = play(scenario(*faults, jobs=jobs, nodes=0, min=0, max=8, idle_s=20.0), keep=None)
    assert played.violation is None, "\n".join(played.trace)
    assert played.endings == {"returned": 80}
    scaled = [re.search(r"pool_scaled .*wanted=(\d+) before=(\d+)", line) for line in played.trace]
    wanted = [int(found[1]) for found in scaled if found]
    first, second = wanted[: wanted.index(0) + 1], wanted[wanted.index(0) + 1 :]
    for way in (first, second):
        assert way[:2] == [1, 8]
        assert way[1:] == sorted(set(way[1:]), reverse=True)
        assert way[-1] == 0


@pytest.mark.parametrize("queue_s", [60.0, 900.0])
def test_a_cluster_whose_jobs_wait_for_longer_than_a_boot_may_take_is_waited_for(queue_s):
    cloud = CloudSpec(queue_s=(queue_s, queue_s), boot_s=(2.0, 4.0))
    played = play(scenario(jobs=[TRAINING], cloud=cloud, boot_timeout_s=20.0, replace_timeout_s=30.0))
    assert played.violation is None
    assert (played.machines, dict(played.endings)) == (4, {"returned": 4})
    assert (played.events["node_queued"], played.events["node_started"]) == (4, 4)
    assert played.simulated_s > queue_s


def test_a_rank_that_is_lost_is_replaced_by_a_job_that_waits_for_a_quarter_of_an_hour():
    cloud = CloudSpec(queue_s=(900.0, 900.0), boot_s=(2.0, 4.0))
    death = f.Death(at_s=5.0, after=("generation_started", 1), who="head", reported_s=0.1)
    played = play(scenario(death, jobs=[TRAINING], cloud=cloud, boot_timeout_s=20.0, replace_timeout_s=30.0))
    assert played.violation is None
    assert (played.generations, dict(played.endings)) == (2, {"returned": 4})


def test_what_answers_after_its_timeout_has_timed_out():
    """The machine stands still, and the task answers before it could be ended for its timeout."""
    job = {"at_s": 30.0, "takes_s": 1.0, "timeout_s": 0.5, "retries": 0}
    played = play(scenario(f.Freeze(at_s=30.3, who=0.0, for_s=2.0), jobs=[job], nodes=1, min=1, max=1))
    assert played.violation is None
    assert dict(played.endings) == {"timed_out": 1}


def test_a_worker_that_dies_soon_after_its_birth_is_one_of_the_failed_starts():
    """Between two times without births one succeeds, and that worker dies before it has run anything."""
    times = f.Barren(at_s=30.0, who=0.0, for_s=0.05), f.Barren(at_s=30.3, who=0.0, for_s=0.5)
    played = play(scenario(*times, nodes=1, min=1, max=1))
    assert played.violation is None
    assert played.events["node_lost"] == 1


def test_a_task_that_loses_its_node_before_its_stall_has_ended_it_runs_again_for_the_loss():
    job = {"at_s": 30.0, "takes_s": 0.5, "retries": 1, "stall_s": 3.0, "stall_restarts": True, "hangs": 2}
    death = f.Death(at_s=0.5, after=("stalled", 1), who=0.0, reported_s=0.2)
    cloud = CloudSpec(boot_s=(20.0, 20.0), kill_s=(5.0, 5.0))
    played = play(scenario(death, jobs=[job], nodes=1, min=1, max=1, cloud=cloud))
    assert played.violation is None
    assert (dict(played.endings), played.events["task_retried"]) == ({"returned": 1}, 2)
