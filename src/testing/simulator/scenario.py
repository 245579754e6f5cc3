"""The input of a simulated run: the pool, its cloud, its jobs and its faults.

A scenario is plain data: it can be printed, written by hand, and shortened by removing faults. The same scenario always
gives the same run. Random numbers during the run come from one stream per purpose (`Dice`), so that removing a fault
does not change, for example, the boot times.
"""

from __future__ import annotations

import math
from dataclasses import field
from random import Random
from typing import Literal

from ...actors.interfaces import OnLoss
from ...lazy_dataclass import dataclass
from .faults import Fault

Ends = Literal["returns", "raises", "dies", "hangs", "poison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One task, or a broadcast, with the behaviour of its function.

    Args:
        id: The number of the job.
        at_s: The time of its submission.
        takes_s: Seconds that its function runs.
        ends: What the function does at its end: ``"returns"``, ``"raises"``, ``"dies"`` (its process exits),
            ``"hangs"``, or ``"poison"`` (it crashes its machine soon after its start).
        once: Whether the job may begin only once.
        retries: The largest number of further attempts after losses of nodes.
        max_restarts: The largest number of further generations of a broadcast after failures of its ranks.
        on: The rank of the node on which the task must run. None: any node.
        queue_timeout_s: The longest wait for a start in seconds. None: no limit.
        timeout_s: The longest run in seconds. None: no limit.
        cancel_after_s: Seconds after which the user cancels the job. None: never.
        deadline_s: The longest time from submission to end in seconds. None: no limit.
        large: Whether the arguments and the result are sent as blobs (files beside the messages).
        fresh: Whether the job runs in a new process of its own.
        cpus: The number of processors that the job holds; for a broadcast, that each rank holds.
        ranks: The number of ranks per node. 0: a task, not a broadcast.
        on_loss: What a broadcast does when it loses a rank.
        collective: Whether ranks wait for each other.
        listens: Whether every rank gets a port of its own.
        stall_s: The stall limit: seconds without a sign of life. A simulated task shows a sign of life only at its
            start.
        stall_restarts: Whether a stalled job runs again.
        hangs: The number of attempts that hang, for each rank, before the first attempt that ends.
        peers_notice_s: Seconds after which a rank raises an error because another rank was lost. None: the rank hangs.
        keep: Whether the result stays on its node, and the user gets a reference to it.
        inputs: Numbers of jobs whose kept results are arguments of this job, which is submitted after their end.
        asks: The user's requests for the value: (seconds from the job's end to the request, longest wait in seconds).
        holds_s: Seconds from the job's end until the user drops the reference. inf: dropped after the end of all jobs.
    """

    id: int
    at_s: float
    takes_s: float
    ends: Ends = "returns"  # "poison": crashes its machine soon after its start
    once: bool = False
    retries: int = 3
    max_restarts: int = 0  # largest number of further generations of a broadcast after failures of its ranks
    on: int | None = None
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    cancel_after_s: float | None = None
    deadline_s: float | None = None
    large: bool = False  # whether the arguments and the result are sent as blobs (files beside the messages)
    fresh: bool = False  # whether the job runs in a new process of its own
    cpus: int = 0  # number of processors that the job holds; for a broadcast, that each rank holds
    ranks: int = 0  # number of ranks per node; 0: a task, not a broadcast
    on_loss: OnLoss = OnLoss.RESTART
    collective: bool = True
    listens: bool = False  # whether every rank gets a port of its own
    # the stall limit in seconds without a sign of life; a simulated task shows one only at its start
    stall_s: float | None = None
    stall_restarts: bool = False
    hangs: int = 0  # number of attempts that hang, for each rank, before the first attempt that ends
    # seconds after which a rank raises an error because another rank was lost; None: it hangs
    peers_notice_s: float | None = None
    keep: bool = False  # whether the result stays on its node, and the user gets a reference to it
    inputs: tuple[int, ...] = ()  # numbers of jobs whose kept results are arguments of this job
    # the user's requests for the value: (seconds from the job's end to the request, longest wait in seconds)
    asks: tuple[tuple[float, float], ...] = ()
    # seconds from the job's end until the user drops the reference; inf: after the end of all jobs
    holds_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSpec:
    """The cloud of a scenario.

    Each duration is a range, (shortest, longest) in seconds, from which each launch, machine or line draws a value.

    Args:
        launch_s: The duration of a launch call.
        queue_s: The time that a machine waits in a queue before it boots. (0, 0): the cloud has no queue.
        boot_s: The duration of a machine's boot.
        connect_s: The duration of connecting to a machine.
        latency_s: The latency of the network between the client and a machine.
        terminate_s: The duration of a terminate call.
        kill_s: The time from killing a process tree until its end is confirmed.
        capacity: The largest number of machines at the same time.
    """

    launch_s: tuple[float, float] = (0.2, 3.0)
    # time that a machine waits in a queue before it boots; (0, 0): the cloud has no queue
    queue_s: tuple[float, float] = (0.0, 0.0)
    boot_s: tuple[float, float] = (5.0, 40.0)
    connect_s: tuple[float, float] = (0.05, 0.3)
    latency_s: tuple[float, float] = (0.0005, 0.05)
    terminate_s: tuple[float, float] = (0.1, 5.0)
    kill_s: tuple[float, float] = (0.002, 0.05)  # time from killing a process tree until its end is confirmed
    capacity: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The input of a simulated run: the pool, its cloud, its jobs and its faults.

    Args:
        seed: The seed of all random numbers during the run.
        nodes: The number of nodes.
        min: The smallest number of nodes.
        max: The largest number of nodes.
        spare: The number of further nodes that stand by to replace lost nodes.
        idle_s: Seconds without work after which the pool releases a node. None: the number of nodes does not follow the
            work.
        slots: The task slots of a node.
        cpus: The number of processors of each machine; further machines repeat these numbers from the first.
        launch_retries: The largest number of further launch calls after a failed one.
        announce: Whether the pool's observer gets events about single tasks.
        boot_timeout_s: Seconds from a launch to a ready node.
        replace_timeout_s: Seconds to wait for the replacement of a lost node.
        lease_s: Seconds after which a node without its client ends itself.
        cloud: The cloud.
        jobs: The jobs that the user submits.
        faults: The faults.
        probe: How the pool finds out whether its own network works: ``"none"`` (no probe), ``"machines"`` (it probes
            its machines) or ``"others"`` (it probes other hosts as well).
        close_at_s: The time at which the user closes the pool, even if jobs still run. None: after all jobs have ended.
    """

    seed: int
    nodes: int
    min: int
    max: int
    spare: int = 0
    # seconds without work after which the pool releases a node; None: the number of nodes does not follow the work
    idle_s: float | None = None
    slots: int = 1
    # number of processors of each machine; further machines repeat these numbers from the first
    cpus: tuple[int, ...] = (0,)
    launch_retries: int = 5
    announce: bool = True  # whether the pool's observer gets events about single tasks
    boot_timeout_s: float = 600.0
    replace_timeout_s: float = 600.0
    lease_s: float = 120.0
    cloud: CloudSpec = field(default_factory=CloudSpec)
    jobs: tuple[Job, ...] = ()
    faults: tuple[Fault, ...] = ()
    # which hosts the pool probes to find out whether its own network works
    probe: Literal["none", "machines", "others"] = "others"
    # seconds; the user then closes the pool even if jobs still run; None: after all jobs have ended
    close_at_s: float | None = None


class Dice:
    """Independent streams of random numbers: drawing from one stream does not change the numbers of another stream."""

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
