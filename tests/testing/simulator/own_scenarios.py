"""Scenarios for what is seldom or never drawn, whatever the seed."""

from __future__ import annotations

from random import Random

from outrider.actors.interfaces import OnLoss
from outrider.testing.simulator import faults as f
from outrider.testing.simulator.draw import hasty
from outrider.testing.simulator.scenario import CloudSpec, Job, Scenario


def lost_after_its_stall(seed: int) -> Scenario:
    """What is seldom drawn: a task hangs, runs again for that, and then its machine dies."""
    job = Job(id=1, at_s=0.0, takes_s=2.5, retries=1, stall_s=3.0, stall_restarts=True, hangs=1)
    death = f.Death(at_s=1.0, after=("task_started", 2), who=0.0, reported_s=0.2)
    return Scenario(seed=seed, nodes=1, min=1, max=1, announce=True, jobs=(job,), faults=(death,))


def lost_before_its_stall_ends_it(seed: int) -> Scenario:
    """What is not drawn: a task hangs, its machine dies before the task is ended for that, and then the task raises."""
    job = Job(id=1, at_s=0.0, takes_s=0.5, ends="raises", stall_s=3.0, stall_restarts=True, hangs=1)
    death = f.Death(at_s=0.5, after=("stalled", 1), who=0.0, reported_s=0.2)
    return Scenario(seed=seed, nodes=1, min=1, max=1, cloud=CloudSpec(kill_s=(5.0, 5.0)), jobs=(job,), faults=(death,))


def stall_cut_short_by_a_loss(seed: int) -> Scenario:
    """A rare case: a task always hangs, and its node is lost while its second stall is ended. No task events."""
    job = Job(id=1, at_s=0.0, takes_s=0.5, ends="hangs", retries=2, stall_s=3.0, stall_restarts=True)
    death = f.Death(at_s=0.5, after=("stalled", 2), who=0.0, reported_s=0.2)
    cloud = CloudSpec(kill_s=(1.0, 1.0))
    return Scenario(seed=seed, nodes=1, min=1, max=1, announce=False, cloud=cloud, jobs=(job,), faults=(death,))


def broadcast_stall_cut_short_by_a_loss(seed: int) -> Scenario:
    """A rare case: a broadcast always hangs, and one of its nodes is lost while its second stall is ended."""
    job = Job(id=1, at_s=0.0, takes_s=0.5, ends="hangs", retries=2, ranks=1, stall_s=3.0, stall_restarts=True)
    death = f.Death(at_s=0.5, after=("stalled", 2), who=0.0, reported_s=0.2)
    cloud = CloudSpec(kill_s=(1.0, 1.0))
    return Scenario(seed=seed, nodes=2, min=2, max=2, cloud=cloud, jobs=(job,), faults=(death,))


def busy_with_a_spare(seed: int) -> Scenario:
    """What is seldom drawn: a broadcast that loses a node, one that stands by, and tasks that wait for a slot."""
    broadcast = Job(id=1, at_s=30.0, takes_s=60.0, ranks=1)
    tasks = tuple(Job(id=number, at_s=40.0, takes_s=30.0) for number in range(2, 9))
    death = f.Death(at_s=50.0, who=0.0, reported_s=0.2)
    cloud = CloudSpec(boot_s=(5.0, 10.0))
    return Scenario(seed=seed, nodes=2, min=2, max=2, spare=1, cloud=cloud, jobs=(broadcast, *tasks), faults=(death,))


def used_and_barren(seed: int) -> Scenario:
    """What is seldom drawn: one node after the other runs something, and can start no worker any more."""
    tasks = tuple(Job(id=number + 1, at_s=2.0 * number, takes_s=0.5) for number in range(90))
    ends = tuple(f.Barren(at_s=12.0, after=("node_ready", nth), who="newest", for_s=700.0) for nth in range(1, 6))
    cloud = CloudSpec(boot_s=(5.0, 10.0))
    return Scenario(seed=seed, nodes=1, min=1, max=1, cloud=cloud, jobs=tasks, faults=ends)


def stalls_with_a_node_lost(seed: int) -> Scenario:
    """What is seldom drawn: ranks hang, one of them is lost, and there is no other node before they have stalled."""
    job = Job(
        id=1, at_s=0.0, takes_s=5.0, ranks=1, on_loss=OnLoss.RESEND, collective=False, stall_s=10.0,
        stall_restarts=True, hangs=1,
    )  # fmt: skip
    death = f.Death(at_s=4.0, after=("generation_started", 1), who=0.9, reported_s=0.2)
    cloud = CloudSpec(boot_s=(20.0, 40.0))
    return Scenario(seed=seed, nodes=3, min=3, max=3, cloud=cloud, jobs=(job,), faults=(death,))


def queued(seed: int) -> Scenario:
    """What is drawn in one of seven: a cluster, whose jobs wait longer than a boot or a replacement may take."""
    cloud = CloudSpec(queue_s=(100.0, 900.0), boot_s=(5.0, 40.0))
    jobs = (Job(id=1, at_s=0.0, takes_s=60.0, ranks=1, retries=10), Job(id=2, at_s=0.0, takes_s=5.0, on=1))
    deaths = tuple(f.Death(at_s=10.0, after=("generation_started", 1), who=who, reported_s=0.2) for who in (0.0, 0.6))
    timeouts = {"boot_timeout_s": 120.0, "replace_timeout_s": 30.0}
    return Scenario(seed=seed, nodes=3, min=3, max=3, cloud=cloud, jobs=jobs, faults=deaths, **timeouts)  # type: ignore[arg-type]


def late_one_after_another(seed: int) -> Scenario:
    """What is seldom drawn: a machine never answers, nor do those in its place, and to end one takes long."""
    deaf = (f.BadMachines(at_s=0.0, machines=1, how="deaf"), f.BadMachines(at_s=4.0, machines=2, how="deaf"))
    cloud = CloudSpec(launch_s=(0.1, 1.0), boot_s=(1.0, 2.0), terminate_s=(5.0, 10.0))
    return Scenario(seed=seed, nodes=2, min=1, max=2, boot_timeout_s=60.0, cloud=cloud, faults=deaf)


def fenced_late(seed: int) -> Scenario:
    """What is seldom drawn: while a lost generation is being ended, this computer has no network, and another dies."""
    begun = ("generation_started", 1)
    faults = (
        f.Death(at_s=5.0, after=begun, who=0.0, reported_s=0.2),
        f.ClientCut(at_s=5.4, after=begun, for_s=50.0),
        f.Death(at_s=20.0, after=begun, who=0.0, silent=True),
    )
    cloud = CloudSpec(launch_s=(0.2, 1.0), boot_s=(5.0, 10.0), kill_s=(1.0, 1.0))
    job = Job(id=1, at_s=0.0, takes_s=60.0, ranks=1, retries=10)
    return Scenario(seed=seed, nodes=3, min=3, max=3, replace_timeout_s=30.0, cloud=cloud, jobs=(job,), faults=faults)


def hasty_broadcasts(seed: int) -> Scenario:
    """One of ten: many broadcasts, most of them cancelled within milliseconds, while connections are lost."""
    scenario = Scenario(seed=seed, nodes=2, min=2, max=2, slots=2, cloud=CloudSpec(boot_s=(1.0, 2.0)))
    return hasty(scenario, 10.0, Random(seed), resets=5)
