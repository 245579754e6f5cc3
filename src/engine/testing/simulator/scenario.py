"""A simulated run's ingredients: the pool, its cloud, its work and its faults; all of it drawn from one number.

A scenario is a value: it can be printed, written by hand, and have faults taken away, and it plays the same every time.
Random numbers during the run come from streams named after their purpose (`Dice`): a fault less changes no boot time.
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
    """One task, or a broadcast, and what its function does.

    Args:
        id: The number of the job.
        at_s: The time of its submission.
        takes_s: Seconds that its function runs.
        ends: ``"returns"``, ``"raises"``, ``"dies"``, ``"hangs"``, or ``"poison"``: takes its machine down as soon as
            it runs.
        once: Whether it may have only one attempt.
        retries: Further attempts when its node is lost.
        max_restarts: Further attempts when it fails; of a broadcast, whose ranks then fail in as many generations.
        on: The rank of its node. None: any.
        queue_timeout_s: The most seconds of waiting. None: no limit.
        timeout_s: The most seconds of running. None: no limit.
        cancel_after_s: Seconds after which the user cancels it. None: never.
        deadline_s: The most seconds from submission to end. None: no limit.
        large: Whether its arguments and its result travel as blobs.
        fresh: Whether it has a process of its own.
        cpus: The processors that it holds; of a broadcast, each rank.
        ranks: The ranks per node. 0: not a broadcast.
        on_loss: What a broadcast does when it loses a rank.
        collective: Whether ranks wait for each other.
        listens: Whether every rank has a port of its own.
        stall_s: Seconds without a sign of life after which it has stalled; the only sign that is played is its
            beginning.
        stall_restarts: Whether it then runs again.
        hangs: The number of first attempts, of each rank, that never end.
        peers_notice_s: Seconds after which a rank whose peer is gone raises. None: it hangs.
        keep: Whether its result stays on its node, with a reference of the user to it.
        inputs: Jobs that end before it is submitted, and whose kept results are its arguments.
        asks: Pairs of seconds: how long after its end the user requests its value, and how long the user waits.
        holds_s: Seconds from its end until the user drops the reference. inf: when all is done.
    """

    id: int
    at_s: float
    takes_s: float
    ends: Ends = "returns"  # poison: takes its machine down as soon as it runs
    once: bool = False
    retries: int = 3
    max_restarts: int = 0  # of a broadcast, whose ranks then fail in so many generations
    on: int | None = None
    queue_timeout_s: float | None = None
    timeout_s: float | None = None
    cancel_after_s: float | None = None
    deadline_s: float | None = None
    large: bool = False  # its arguments and its result travel as blobs
    fresh: bool = False  # in a process of its own
    cpus: int = 0  # that it holds of its node; a broadcast's ranks each
    ranks: int = 0  # per node; 0: not a broadcast
    on_loss: OnLoss = OnLoss.RESTART
    collective: bool = True
    listens: bool = False  # every rank has a port of its own
    stall_s: float | None = None  # a played task's only sign of life is its beginning
    stall_restarts: bool = False
    hangs: int = 0  # so many of the first attempts, of each rank, never end
    peers_notice_s: float | None = None  # a rank whose peer is gone raises after so long; None: it hangs
    keep: bool = False  # its result stays on its node, and the user has a reference to it
    inputs: tuple[int, ...] = ()  # jobs that are over before it is submitted, and those of their results that are kept
    asks: tuple[tuple[float, float], ...] = ()  # so long after its end the user asks for its value, for so long at most
    holds_s: float = math.inf  # after its end, until the user lets go of the reference; inf: when all is done


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSpec:
    """The cloud of a scenario. Seconds are ranges that each launch, machine or line draws from.

    Args:
        launch_s: A launch call.
        queue_s: The wait of a machine in a queue before it boots. 0 to 0: there is no queue.
        boot_s: The boot of a machine.
        connect_s: A connection to a machine.
        latency_s: The latency of a line.
        terminate_s: A terminate call.
        kill_s: The end of a process tree, until it is proved.
        capacity: The most machines.
    """

    launch_s: tuple[float, float] = (0.2, 3.0)
    queue_s: tuple[float, float] = (0.0, 0.0)  # until a machine runs and boots; 0 to 0: there is no queue
    boot_s: tuple[float, float] = (5.0, 40.0)
    connect_s: tuple[float, float] = (0.05, 0.3)
    latency_s: tuple[float, float] = (0.0005, 0.05)
    terminate_s: tuple[float, float] = (0.1, 5.0)
    kill_s: tuple[float, float] = (0.002, 0.05)  # a process tree, until that is proved
    capacity: int = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A simulated run: the pool, its cloud, its work and its faults.

    Args:
        seed: The seed of all chance during the run.
        nodes: The number of nodes.
        min: The least number of nodes.
        max: The most nodes.
        spare: Further nodes that stand by.
        idle_s: Seconds without work after which a node leaves, if the number follows the work. None: it does not.
        slots: The task slots of a node.
        cpus: The processors of the machines, in turn.
        launch_retries: Further launches after a failed one.
        announce: Whether somebody watches single tasks.
        boot_timeout_s: Seconds from a launch to a ready node.
        replace_timeout_s: Seconds to wait for the replacement of a lost node.
        lease_s: Seconds after which a node without its client ends itself.
        cloud: The cloud.
        jobs: The work.
        faults: The faults.
        probe: Which reachability probe is used: ``"none"``, ``"machines"`` or ``"others"``.
        close_at_s: The time at which the user leaves, whatever still runs. None: when all is done.
    """

    seed: int
    nodes: int
    min: int
    max: int
    spare: int = 0
    idle_s: float | None = None  # after which a node leaves, where the number follows the work; None: it does not
    slots: int = 1
    cpus: tuple[int, ...] = (0,)  # of the machines, in turn
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
    """Independent streams of chance: drawing from one does not shift another."""

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
