"""The actions that `WorkerScheduler` decides on, and `WorkerPool` carries out."""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple
from ..wire.messages import Ended, Returned, Run, Started


class Fork(NamedTuple):
    worker: int
    slot: int  # index of the slot (room for one task) that the worker fills; `instance_info` shows it
    fresh: bool
    attempt: int = 0  # for a fresh worker: the attempt that it will run; 0 otherwise


class Deliver(NamedTuple):
    worker: int
    run: Run
    body: bytes


class Steal(NamedTuple):
    """Take back the attempts that the worker has not read. Then report its results by `finished`, and call `stolen`."""

    worker: int


class Interrupt(NamedTuple):
    worker: int
    attempt: int


class EndWorker(NamedTuple):
    """Kill the worker and all processes that it has started. When all have ended, call `WorkerScheduler.gone`."""

    worker: int


class Answer(NamedTuple):
    """Send the client a message that the executor has created, not a worker."""

    message: Started | Ended | Returned


class Relay(NamedTuple):
    """Forward a worker's message to the client."""

    body: bytes


class GiveUp(NamedTuple):
    """End the executor, because no task can run on this node; ``reason`` says why."""

    reason: str


Effect = Fork | Deliver | Steal | Interrupt | EndWorker | Answer | Relay | GiveUp
