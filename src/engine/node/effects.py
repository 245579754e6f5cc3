"""The actions that the scheduler decides on. The worker pool executes them."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from ..wire.messages import Ended, Returned, Run, Started


class Fork(NamedTuple):
    worker: int
    slot: int  # the slot's index, which `instance_info` shows
    fresh: bool
    attempt: int = 0  # the attempt for which a fresh worker is forked; 0: none


class Deliver(NamedTuple):
    worker: int
    run: Run
    body: bytes


class Steal(NamedTuple):
    """Take back the worker's unread attempts. Call `WorkerScheduler.finished` for its results, then `stolen`."""

    worker: int


class Interrupt(NamedTuple):
    worker: int
    attempt: int


class EndWorker(NamedTuple):
    """Kill the worker's whole process tree.

    `WorkerScheduler.gone` is called when all its processes are confirmed gone.
    """

    worker: int


class Answer(NamedTuple):
    """Send the client a message that the executor itself creates."""

    message: Started | Ended | Returned


class Relay(NamedTuple):
    """Forward a worker's message to the client."""

    body: bytes


class GiveUp(NamedTuple):
    """End the executor for this reason: no task can run on this node."""

    reason: str


Effect = Fork | Deliver | Steal | Interrupt | EndWorker | Answer | Relay | GiveUp
