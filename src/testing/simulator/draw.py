"""Draw a scenario from a seed: the pool, the cloud, the jobs and the faults.

Rare cases are more frequent than in reality.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, get_args

from ...actors.interfaces import OnLoss
from . import faults as f
from .scenario import CloudSpec, Job, Scenario

# share of the pools with less than `LARGE` nodes whose machines wait in the provider's queue before they run
QUEUED = 0.15
SCALED = 0.25  # share of the pools with less than `LARGE` nodes whose number of nodes follows the load
HOLDING = 0.25  # share of the pools with less than `LARGE` nodes in which tasks reserve CPUs
STALLING = 0.25  # share of the pools with less than `LARGE` nodes in which jobs have a stall limit
LIMITED = 0.15  # share of the pools with less than `LARGE` nodes in which jobs have deadlines
# share of the pools with less than `LARGE` nodes that get many short broadcasts, most of them cancelled soon after
# their start, while connections are lost
HASTY = 0.1
# share of the pools with less than `LARGE` nodes in which tasks keep results on nodes, as inputs of other tasks
KEEPING = 0.3
# number of nodes; in pools of this size or larger, the number of faults grows with the nodes, and broadcasts run one
# after another
LARGE = 64
EVENTS = (
    *("generation_started", "generation_lost", "nodes_requested", "node_launching"),
    *("node_suspect", "node_noticed", "node_lost"),
)


def draw(seed: int, *, nodes: int | None = None, span_s: float | None = None) -> Scenario:
    """Return the scenario of a seed: equal arguments give equal scenarios.

    Args:
        seed: The seed.
        nodes: The number of nodes. None: a random number.
        span_s: Seconds within which jobs and faults begin. None: a random time.
    """
    dice = Random(f"scenario {seed}")  # noqa: S311
    size = nodes or dice.choice((1, 2, 2, 3, 3, 4, 4, 4, 5, 6, 8, 12))
    lasts_s = span_s or (600.0 if size >= LARGE else dice.choice((20.0, 60.0, 120.0, 300.0)))
    least = dice.choice((size, size, size, max(1, size // 2), 1))
    large = size >= LARGE
    scenario = Scenario(
        seed=seed,
        nodes=size,
        min=least,
        max=max(size, least) + dice.choice((0, 2)),
        spare=dice.choice((0, 0, 0, 1, 1, 2)),
        slots=dice.choice((1, 1, 2, 4)),
        launch_retries=dice.choice((3, 5, 20)),
        announce=not large and dice.random() < 0.5,
        boot_timeout_s=dice.choice((120.0, 600.0)),
        replace_timeout_s=dice.choice((30.0, 120.0, 600.0)),
        lease_s=dice.choice((60.0, 120.0)),
        probe=dice.choice(("none", "machines", "others", "others")),
        cloud=_cloud(dice),
        jobs=tuple(_broadcasts(dice, lasts_s) if large else _jobs(dice, lasts_s, size)),
        faults=tuple(_faults(dice, lasts_s, size)),
        close_at_s=dice.uniform(0.0, lasts_s) if dice.random() < 0.12 and not large else None,
    )
    if large:
        return scenario
    scaled = _with_amounts(_by_load(scenario, Random(f"scale {seed}")), Random(f"amounts {seed}"))  # noqa: S311
    stalling = _with_hangs(_with_stalls(scaled, Random(f"stalls {seed}")), Random(f"hangs {seed}"))  # noqa: S311
    keeping = _with_kept(stalling, lasts_s, Random(f"kept {seed}"))  # noqa: S311
    limited = _with_deadlines(keeping, Random(f"deadlines {seed}"))  # noqa: S311
    hasty = _with_haste(limited, lasts_s, Random(f"haste {seed}"))  # noqa: S311
    return _queued(hasty, Random(f"queue {seed}"))  # noqa: S311


def _queued(scenario: Scenario, dice: Random) -> Scenario:
    """Return the scenario, in some cases with a queue in which machines wait, often longer than a boot takes."""
    if dice.random() >= QUEUED:
        return scenario
    queue_s = dice.choice(((0.1, 3.0), (5.0, 60.0), (100.0, 900.0)))
    return replace(scenario, cloud=replace(scenario.cloud, queue_s=queue_s))


def _by_load(scenario: Scenario, dice: Random) -> Scenario:
    """Return the scenario, in some cases with a pool whose number of nodes follows the load."""
    if dice.random() >= SCALED:
        return scenario
    least = dice.choice((0, 0, scenario.min))
    return replace(scenario, nodes=least, min=least, idle_s=dice.choice((0.5, 5.0, 40.0)))


def _with_amounts(scenario: Scenario, dice: Random) -> Scenario:
    """Return the scenario, in some cases with tasks that reserve CPUs: some reserve more CPUs than any machine has."""
    if dice.random() >= HOLDING:
        return scenario
    shapes: dict[tuple[float, float], int] = {}
    for job in scenario.jobs:
        shapes.setdefault((job.at_s, job.takes_s), dice.choice((0, 1, 1, 2, 3, 4, 5)))
    jobs = tuple(replace(job, cpus=shapes[job.at_s, job.takes_s]) for job in scenario.jobs)
    return replace(scenario, jobs=jobs, cpus=dice.choice(((4,), (4,), (2, 4), (4, 3, 1))))


def _with_stalls(scenario: Scenario, dice: Random) -> Scenario:
    """Return the scenario, in some cases with stall limits for jobs, of which some run longer, and some hang."""
    if dice.random() >= STALLING:
        return scenario
    jobs: list[Job] = []
    for job in scenario.jobs:
        stall_s = dice.choice((None, 0.5, 3.0, 20.0))
        restarts = stall_s is not None and not job.once and dice.random() < 0.5
        timeout_s = None if restarts and job.ends == "hangs" else job.timeout_s
        jobs.append(replace(job, stall_s=stall_s, stall_restarts=restarts, timeout_s=timeout_s))
    return replace(scenario, jobs=tuple(jobs))


def _with_hangs(scenario: Scenario, dice: Random) -> Scenario:
    """Return the scenario, in some cases with jobs whose first tries hang, and with machines that die meanwhile."""
    jobs: list[Job] = []
    faults = list(scenario.faults)
    for job in scenario.jobs:
        if job.stall_s is None or not job.stall_restarts or job.ends != "returns" or dice.random() < 0.5:
            jobs.append(job)
            continue
        stall_s = max(job.stall_s, 1.5 * job.takes_s + 1.0)  # longer than any normal run of the job
        hanging = replace(job, stall_s=stall_s, hangs=dice.choice((1, 1, 2)))
        if job.ranks:
            if dice.random() < 0.5:
                hanging = replace(hanging, on_loss=OnLoss.RESEND, collective=False, max_restarts=0)
            for _ in range(dice.choice((0, 1, 1, 2))):
                at_s, after = round(stall_s * dice.uniform(0.0, 1.1), 4), ("generation_started", dice.randint(1, 3))
                whom: tuple[f.Who, ...] = ("head", round(dice.random(), 3))
                who, reported_s = dice.choice(whom), dice.choice((0.2, 20.0))
                faults.append(f.Death(at_s=at_s, after=after, who=who, reported_s=reported_s))
        jobs.append(hanging)
    return replace(scenario, jobs=tuple(jobs), faults=tuple(faults))


def _with_kept(scenario: Scenario, lasts_s: float, dice: Random) -> Scenario:
    """Return the scenario, in some cases with results that nodes keep, and with losses of such nodes."""
    if dice.random() >= KEEPING:
        return scenario
    jobs, kept = [*scenario.jobs], list[int]()
    for _ in range(dice.randint(3, 12)):
        once = dice.random() < 0.1
        asks = tuple(
            (dice.choice((0.0, 2.0, 20.0, 100.0)), dice.choice((math.inf, math.inf, 0.0, 0.1, 5.0)))
            for _ in range(dice.choice((0, 1, 1, 2, 3)))
        )
        job = Job(
            id=len(jobs) + 1,
            at_s=dice.uniform(0.0, lasts_s) if dice.random() < 0.5 else 0.0,
            takes_s=dice.choice((0.0002, 0.05, 1.0, 8.0)),
            ends=dice.choices(("returns", "raises", "dies"), (90, 5, 5))[0],
            once=once,
            retries=0 if once else dice.choice((0, 1, 2, 3, 10)),
            cancel_after_s=dice.choice((0.0, 2.0, 60.0)) if dice.random() < 0.1 else None,
            large=dice.random() < 0.1,
            keep=dice.random() < 0.75,
            inputs=tuple(dice.sample(kept[-4:], min(len(kept), 4, dice.choice((0, 1, 1, 2, 3))))),
            asks=asks,
            holds_s=dice.choice((math.inf, math.inf, math.inf, 0.0, 0.5, 30.0)),
        )
        jobs.append(job)
        kept += [job.id] * job.keep
    deaths = tuple(_death_of_kept(dice, lasts_s) for _ in range(dice.choice((2, 4, 6, 8))))
    return replace(scenario, jobs=tuple(jobs), faults=(*scenario.faults, *deaths))


def _with_deadlines(scenario: Scenario, dice: Random) -> Scenario:
    """Return the scenario, in some cases with deadlines for jobs."""
    if dice.random() >= LIMITED:
        return scenario
    jobs = (replace(job, deadline_s=dice.choice((None, 0.0, 0.5, 5.0, 60.0, 300.0))) for job in scenario.jobs)
    return replace(scenario, jobs=tuple(jobs))


def _with_haste(scenario: Scenario, lasts_s: float, dice: Random) -> Scenario:
    """Return the scenario, in some cases with so many short broadcasts that each port of a node is used."""
    if dice.random() >= HASTY:
        return scenario
    return hasty(scenario, dice.uniform(0.0, lasts_s), dice, resets=dice.choice((0, 3, 10)))


def hasty(scenario: Scenario, at_s: float, dice: Random, *, resets: int) -> Scenario:
    """Add two things to the scenario: broadcasts that end or are cancelled within milliseconds, and lost connections.

    Args:
        scenario: The scenario.
        at_s: The time at which these broadcasts begin, in seconds.
        dice: The random generator.
        resets: After ``resets`` of 10 broadcasts, a connection is lost.
    """
    jobs, faults = [*scenario.jobs], [*scenario.faults]
    for _ in range(dice.choice((20, 60, 120))):
        at_s += dice.choice((0.0, 0.002, 0.05, 0.3))
        cancel_after_s = dice.choice((None, 0.0, 0.001, 0.004, 0.02, 0.2))
        job = Job(
            id=len(jobs) + 1, at_s=at_s, takes_s=0.001, ranks=1, cancel_after_s=cancel_after_s,
            large=dice.random() < 0.2, listens=dice.random() < 0.2, collective=dice.random() < 0.5, retries=50,
        )  # fmt: skip
        jobs.append(job)
        if len(jobs) % 10 < resets:
            faults.append(f.Reset(at_s=round(at_s + dice.uniform(0.0, 0.2), 4), who=dice.choice(("head", 0.0, 0.6))))
    return replace(scenario, jobs=tuple(jobs), faults=tuple(faults))


def _death_of_kept(dice: Random, lasts_s: float) -> f.Death:
    """Return a fault that ends a machine at a time when it may hold a kept result, or recompute a lost one."""
    after = dice.choice(
        (None, ("pool_ready", 1), ("node_lost", dice.randint(1, 3)), ("remake_started", dice.randint(1, 5)))
    )
    at_s = dice.choice((0.0, 0.001, 0.05, 1.0, 10.0)) if after is not None else dice.uniform(0.0, 2.0 * lasts_s)
    who: tuple[f.Who, ...] = ("head", "newest", round(dice.random(), 3))
    return f.Death(
        at_s=round(at_s, 4),
        after=after,
        who=dice.choice(who),
        silent=dice.random() < 0.5,
        reported_s=dice.choice((None, 0.2, 20.0)),
    )


def _cloud(dice: Random) -> CloudSpec:
    return CloudSpec(
        launch_s=dice.choice(((0.0, 0.1), (0.2, 3.0), (5.0, 20.0))),
        boot_s=dice.choice(((0.0, 0.0), (0.2, 2.0), (5.0, 40.0), (30.0, 90.0))),
        connect_s=dice.choice(((0.01, 0.05), (0.05, 0.3), (0.2, 0.6))),
        latency_s=dice.choice(((0.0001, 0.001), (0.0005, 0.05), (0.08, 0.15))),
        terminate_s=dice.choice(((0.0, 0.1), (1.0, 10.0))),
        kill_s=dice.choice(((0.001, 0.01), (0.01, 0.5))),
    )


# --- work -------------------------------------------------------------------------------------------------------------


def _jobs(dice: Random, lasts_s: float, size: int) -> list[Job]:
    jobs: list[Job] = []
    for _ in range(dice.randint(2, 14)):
        at_s = dice.uniform(0.0, lasts_s) if dice.random() < 0.8 else 0.0
        shape = _broadcast(dice) if dice.random() < 0.35 else _task(dice, size)
        # not drawn in groups: broadcasts, and jobs that crash their machines (up to four each)
        alone = shape.get("ranks") or shape["ends"] == "poison"
        for _ in range(1 if alone else dice.choice((1, 1, 3, 12, 40))):
            jobs.append(Job(id=len(jobs) + 1, at_s=at_s, **shape))
    return jobs


def _broadcasts(dice: Random, lasts_s: float) -> list[Job]:
    """Return the jobs of a large pool: broadcasts one after another, each with 50 tasks at the same time."""
    jobs: list[Job] = []
    at_s = 0.0
    while at_s < lasts_s:
        takes_s = dice.uniform(60.0, 240.0)
        jobs.append(Job(id=len(jobs) + 1, at_s=at_s, takes_s=takes_s, ranks=1, retries=50))
        jobs += [Job(id=len(jobs) + 1 + n, at_s=at_s, takes_s=dice.uniform(1.0, 20.0)) for n in range(50)]
        at_s += takes_s
    return jobs


def _task(dice: Random, size: int) -> dict[str, Any]:
    once = dice.random() < 0.15
    ends = dice.choices(("returns", "raises", "dies", "hangs", "poison"), (80, 6, 6, 4, 4))[0]
    shape: dict[str, Any] = {
        "takes_s": dice.choice((0.0002, 0.004, 0.05, 1.0, 8.0, 30.0)),
        "ends": ends,
        "once": once,
        "retries": 0 if once else dice.choice((0, 1, 3, 3, 10)),
        "queue_timeout_s": dice.choice((1.0, 30.0)) if dice.random() < 0.1 else None,
        "timeout_s": dice.choice((0.5, 20.0)) if ends == "hangs" or dice.random() < 0.1 else None,
        "cancel_after_s": dice.choice((0.0, 0.05, 2.0, 20.0)) if dice.random() < 0.1 else None,
        "large": dice.random() < 0.1,
        "fresh": dice.random() < 0.1,
    }
    if dice.random() < 0.1:
        shape["on"] = dice.randrange(min(size, 2))
    return shape


def _broadcast(dice: Random) -> dict[str, Any]:
    on_loss = dice.choice((OnLoss.RESTART, OnLoss.RESTART, OnLoss.RESTART, OnLoss.RESEND, OnLoss.FAIL))
    once = dice.random() < 0.08
    ends = dice.choices(("returns", "raises", "dies", "hangs", "poison"), (85, 5, 5, 3, 2))[0]
    return {
        "takes_s": dice.choice((0.001, 0.5, 5.0, 30.0, 60.0)),
        "ends": ends,
        "ranks": dice.choice((1, 1, 1, 2)),
        "on_loss": on_loss,
        # False for RESEND: a rank that runs again alone would wait for its peers without end
        "collective": on_loss is not OnLoss.RESEND and dice.random() < 0.8,
        "listens": dice.random() < 0.3,
        "once": once,
        "retries": 0 if once else dice.choice((0, 3, 3, 10)),
        "queue_timeout_s": dice.choice((5.0, 60.0)) if dice.random() < 0.05 else None,
        "timeout_s": dice.choice((1.0, 20.0)) if ends == "hangs" else None,
        "max_restarts": dice.choice((0, 0, 1, 3)) if on_loss is OnLoss.RESTART and not once else 0,
        "cancel_after_s": dice.choice((0.0, 0.5, 10.0)) if dice.random() < 0.08 else None,
        "peers_notice_s": dice.choice((None, None, 0.01, 1.0, 5.0)),
        "large": dice.random() < 0.1,
        "fresh": dice.random() < 0.3,
    }


# --- faults -----------------------------------------------------------------------------------------------------------


def _faults(dice: Random, lasts_s: float, size: int) -> list[f.Fault]:
    """Return random faults: some single, some in quick series, to hit the pool while it handles another fault."""
    if size >= LARGE:
        return [_fault(dice, dice.uniform(0.0, lasts_s), None, size) for _ in range(round(size * lasts_s / 14_400))]
    faults: list[f.Fault] = []
    if dice.random() < 0.2:  # let some of the first machines be unusable
        machines, how = dice.randint(1, max(1, size // 3)), dice.choice(f.SILENT)
        faults.append(f.BadMachines(at_s=0.0, machines=machines, how=how))
    for _ in range(dice.choice((0, 1, 2, 3, 4, 6))):
        after = (dice.choice(EVENTS), dice.randint(1, 4)) if dice.random() < 0.4 else None
        at_s = dice.uniform(0.0, lasts_s) if after is None else 0.0
        for _ in range(dice.choice((1, 1, 1, 2, 3))):
            at_s += dice.choice((0.0, 0.001, 0.03, 0.3, 2.0, 9.0))
            faults.append(_fault(dice, at_s, after, size))
    return faults


def _fault(dice: Random, at_s: float, after: tuple[str, int] | None, size: int) -> f.Fault:
    kind, _, how = dice.choices(_FAULTS, [weight for _, weight, _ in _FAULTS])[0]
    fields: dict[str, Any] = {"at_s": round(at_s, 4), "after": after} | how(dice, size)
    if "who" in kind.__dataclass_fields__:
        fields["who"] = dice.choice(("head", "newest", *[round(dice.random(), 3)] * 3))
    return kind(**fields)


def _notice(dice: Random, size: int) -> dict[str, Any]:  # noqa: ARG001
    seconds = dice.choice((30.0, 120.0))
    return {
        "seconds": seconds,
        "by": dice.choice(("node", "node", "cloud", "both")),
        "then": dice.choice(("dies", "dies", "withdrawn", "nothing")),
        "after_s": dice.choice((0.1, 3.0, 10.0, seconds)),
    }


def _resize(dice: Random, size: int) -> dict[str, Any]:
    return {"wanted": max(min(2, size), dice.randint(size // 2, size + 2))}


def _of(**choices: tuple[Any, ...]) -> _How:
    return lambda dice, size: {name: dice.choice(values) for name, values in choices.items()}  # noqa: ARG005


_How = Callable[[Random, int], dict[str, Any]]
# (type of the fault, relative frequency, function that draws its fields)
_FAULTS: tuple[tuple[type[f.Fault], int, _How], ...] = (
    (f.Notice, 5, _notice),
    (f.Death, 6, _of(silent=(True, False), reported_s=(None, 0.2, 20.0))),
    (f.Outage, 2, _of(share=(0.3, 0.6, 1.0), silent=(True, False))),
    (f.Reset, 3, _of()),
    (f.DaemonDeath, 2, _of(restarts=(True, False))),
    (f.WorkerDeath, 2, _of()),
    (f.Barren, 4, _of(for_s=(0.05, 0.5, 3.0, 700.0))),
    (f.Partition, 4, _of(for_s=(1.0, 3.0, 8.0, 20.0, 150.0), way=("both", "both", "out", "in"))),
    (f.Freeze, 2, _of(for_s=(1.0, 3.0, 5.0, 15.0))),
    (f.Slow, 2, _of(for_s=(5.0, 60.0), by_s=(0.2, 0.5, 2.0))),
    (f.ClientCut, 2, _of(for_s=(2.0, 10.0, 45.0, 60.0, 200.0))),
    (f.Drought, 2, _of(for_s=(5.0, 60.0, 700.0))),
    (f.LaunchErrors, 2, _of(calls=(1, 2, 3), retry_after_s=(0.0, 1.0, 30.0))),
    (f.BadMachines, 2, _of(machines=(1, 2), how=get_args(f.Bad))),
    (f.TerminateErrors, 1, _of(for_s=(5.0, 60.0))),
    (f.WatchError, 1, _of()),
    (f.Echo, 2, _of()),
    (f.Forgery, 2, _of()),
    (f.Resize, 2, _resize),
    (f.LostAnswers, 2, _of(calls=(1, 2, 4))),
)
