"""What the core wants done; the crew does it."""

from __future__ import annotations

from typing import NamedTuple

from ..wire.messages import Ended, Returned, Run, Started


class Fork(NamedTuple):
    worker: int
    slot: int  # `instance_info` says it
    fresh: bool


class Deliver(NamedTuple):
    worker: int
    run: Run
    body: bytes


class Steal(NamedTuple):
    """Take back what the worker has not read; its results first, then `Core.stolen`."""

    worker: int


class Interrupt(NamedTuple):
    worker: int
    attempt: int


class EndWorker(NamedTuple):
    """Kill its whole process tree; `Core.gone` when that is proved."""

    worker: int


class Answer(NamedTuple):
    """The executor's own word to the client."""

    message: Started | Ended | Returned


class Relay(NamedTuple):
    """A worker's word to the client."""

    body: bytes


class GiveUp(NamedTuple):
    """No task can run here: the executor ends, and says why."""

    reason: str


Effect = Fork | Deliver | Steal | Interrupt | EndWorker | Answer | Relay | GiveUp
