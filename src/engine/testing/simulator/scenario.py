"""The input of a simulated run: the pool, its cloud, its work and its faults, all drawn from one number.

A scenario is a value: it can be printed, written by hand, and shortened by removing faults, and it plays the same every
time. Random numbers during the run come from streams named after their purpose (`Dice`), so that removing a fault does
not change, for example, the boot times.
"""

from __future__ import annotations

import math
from dataclasses import field
from random import Random
from typing import Literal

from ....actors.interfaces import OnLoss
from ....lazy_dataclass import dataclass
from .faults import Fault

Ends = Literal["returns", "raises", "dies", "hangs", "poison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task, or a broadcast, with the behaviour of its function.

    Args:
        id: The number of the job.
        at_s: The time of its submission.
        takes_s: Seconds that its function runs.
        ends: ``"returns"``, ``"raises"``, ``"dies"``, ``"hangs"``, or ``"poison"``: crashes its machine at once.
        once: Whether the job may have only one attempt.
        retries: Further attempts when its node is lost.
        max_restarts: Further attempts when the job fails. A broadcast's ranks then fail in as many generations.
        on: The rank of its node. None: any.
        queue_timeout_s: The longest wait in seconds. None: no limit.
        timeout_s: The longest run in seconds. None: no limit.
        cancel_after_s: Seconds after which the user cancels it. None: never.
        deadline_s: The longest time from submission to end in seconds. None: no limit.
        large: Whether the arguments and the result are sent as blobs.
        fresh: Whether the job has a process of its own.
        cpus: The processors that the job holds; for a broadcast, per rank.
        ranks: The ranks per node. 0: not a broadcast.
        on_loss: What a broadcast does when it loses a rank.
        collective: Whether ranks wait for each other.
        listens: Whether every rank has a port of its own.
        stall_s: Seconds without a sign of life after which the job has stalled; the only simulated sign is its start.
        stall_restarts: Whether a stalled job runs again.
        hangs: The number of first attempts, of each rank, that never end.
        peers_notice_s: Seconds after which a rank with a lost peer raises. None: the rank hangs.
        keep: Whether the result stays on its node, and the user has a reference to it.
        inputs: Jobs that end before this job is submitted; their kept results are its arguments.
        asks: Pairs of seconds: from the job's end to the user's request for the value, and how long the user waits.
        holds_s: Seconds from the job's end until the user drops the reference. inf: when all jobs are done.
    """

    id: int
    at_s: float
    takes_s: float
    ends: Ends = "returns"  # poison: crashes its machine as soon as it runs
    once: bool = False
    retries: int = 3
    max_restarts: int = 0  # number of generations in which a broadcast's ranks fail
    on: int | None = None
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    cancel_after_s: float | None = None
    deadline_s: float | None = None
    large: bool = False  # whether its arguments and its result are sent as blobs
    fresh: bool = False  # whether it runs in a process of its own
    cpus: int = 0  # processors that it holds of its node; for a broadcast, per rank
    ranks: int = 0  # number per node; 0: not a broadcast
    on_loss: OnLoss = OnLoss.RESTART
    collective: bool = True
    listens: bool = False  # whether every rank has a port of its own
    stall_s: float | None = None  # a simulated task's only sign of life is its start
    stall_restarts: bool = False
    hangs: int = 0  # number of first attempts, of each rank, that never end
    peers_notice_s: float | None = None  # seconds after which a rank with a lost peer raises; None: it hangs
    keep: bool = False  # whether its result stays on its node, and the user has a reference to it
    inputs: tuple[int, ...] = ()  # jobs that end before this job is submitted; their kept results are its arguments
    # (seconds from its end to the user's request for the value, longest wait in seconds)
    asks: tuple[tuple[float, float], ...] = ()
    holds_s: float = math.inf  # seconds from its end until the user drops the reference; inf: when all jobs are done


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSpec:
    """The cloud of a scenario. Durations are ranges in seconds; each launch, machine or line draws a value from them.

    Args:
        launch_s: The duration of a launch call.
        queue_s: The wait of a machine in a queue before it boots. 0 to 0: the cloud has no queue.
        boot_s: The duration of a machine's boot.
        connect_s: The duration of connecting to a machine.
        latency_s: The latency of a line.
        terminate_s: The duration of a terminate call.
        kill_s: The time from killing a process tree to the proof that it has ended.
        capacity: The largest number of machines.
    """

    launch_s: tuple[float, float] = (0.2, 3.0)
    queue_s: tuple[float, float] = (0.0, 0.0)  # time until a machine begins to boot; 0 to 0: the cloud has no queue
    boot_s: tuple[float, float] = (5.0, 40.0)
    connect_s: tuple[float, float] = (0.05, 0.3)
    latency_s: tuple[float, float] = (0.0005, 0.05)
    terminate_s: tuple[float, float] = (0.1, 5.0)
    kill_s: tuple[float, float] = (0.002, 0.05)  # time from killing a process tree to the proof that it has ended
    capacity: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulated run: the pool, its cloud, its work and its faults.

    Args:
        seed: The seed of all random numbers during the run.
        nodes: The number of nodes.
        min: The smallest number of nodes.
        max: The largest number of nodes.
        spare: Further nodes that stand by.
        idle_s: Seconds without work after which a node leaves, if the number of nodes follows the work. None: it does
            not.
        slots: The task slots of a node.
        cpus: The numbers of processors of the machines, in turn.
        launch_retries: Further launches after a failed one.
        announce: Whether single tasks have observers.
        boot_timeout_s: Seconds from a launch to a ready node.
        replace_timeout_s: Seconds to wait for the replacement of a lost node.
        lease_s: Seconds after which a node without its client ends itself.
        cloud: The cloud.
        jobs: The work.
        faults: The faults.
        probe: Which reachability probe is used: ``"none"``, ``"machines"`` or ``"others"``.
        close_at_s: The time at which the user closes the pool, even if work still runs. None: when all is done.
    """

    seed: int
    nodes: int
    min: int
    max: int
    spare: int = 0
    # seconds after which a node leaves, if the number of nodes follows the work; None: it does not
    idle_s: float | None = None
    slots: int = 1
    cpus: tuple[int, ...] = (0,)  # numbers of processors of the machines, in turn
    launch_retries: int = 5
    announce: bool = True  # whether single tasks have observers
    boot_timeout_s: float = 600.0
    replace_timeout_s: float = 600.0
    lease_s: float = 120.0
    cloud: CloudSpec = field(default_factory=CloudSpec)
    jobs: tuple[Job, ...] = ()
    faults: tuple[Fault, ...] = ()
    probe: Literal["none", "machines", "others"] = "others"  # which reachability probe is used
    close_at_s: float | None = None  # when the user closes the pool, even with running work; None: when all is done


class Dice:
    """Independent streams of random numbers: drawing from one stream does not change another."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[tuple[str | int, ...], Random] = {}

    def of(self, *names: str | int) -> Random:
        stream = self._streams.get(names)
        if stream is None:
            stream = self._streams[names] = Random(f"{self._seed}/{'/'.join(map(str, names))}")  # noqa: S311
        return stream

    def within(self, range_: tuple[float, float], *names: str | int) -> float:
        least, most = range_
        return least + (most - least) * self.of(*names).random()
