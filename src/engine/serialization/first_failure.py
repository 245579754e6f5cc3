"""Choose the rank that failed first in a broadcast. Other ranks fail because of it, and may be reported sooner.

A process closes its connections before its node can report its end, and a task is reported only after its exception has
left the function. So errors of other ranks about a lost peer can arrive some milliseconds earlier, and times alone do
not decide.
"""

from __future__ import annotations

import math
import re
import signal
from collections.abc import Sequence
from enum import IntEnum

from ...lazy_named_tuple import NamedTuple
from ..api import errors
from .error_notes import ranks_of

# seconds in which other failures count as consequences: the kernel may take 5 s to end a process with tens of gigabytes
# or several GPUs
FOLLOWS_S = 5.0
ERROR_CHARS = 300
_PEER_GONE = (
    r"(?i)connection (was )?(likely )?(closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe"
    r"|socket closed|remote process exited|ncclRemoteError|peer (is )?(down|gone|lost)|recv, got 0 bytes"
    r"|heartbeat timeout|coordination service"
)


class Sign(IntEnum):
    """The origin that a failure suggests. The failure with the smallest value is most likely the first one."""

    OWN = 0  # nothing suggests that another rank is the cause
    ABORTED = 1  # libraries abort the process when they lose a peer, but also because of their own errors
    PEER_GONE = 2  # another rank could not be reached


class Failure(NamedTuple):
    rank: int
    at: float  # seconds on the pool's clock
    sign: Sign


def first_of(failures: Sequence[Failure]) -> Failure:
    """Return the failure that most likely caused the others. ``failures`` has at least one.

    It is the earliest one, unless that is about a lost peer. Then, of all failures within `FOLLOWS_S` after it, choose
    the smallest sign, and of these the earliest.
    """
    earliest = min(failure.at for failure in failures)
    near = [failure for failure in failures if failure.at <= earliest + FOLLOWS_S]
    return min(near, key=lambda failure: (failure.sign, failure.at, failure.rank))


def sign_of(error: Exception) -> Sign:
    if isinstance(error, errors.TaskKilled):
        return Sign.ABORTED if error.signal == signal.SIGABRT else Sign.OWN
    if isinstance(error, ConnectionError) or re.search(_PEER_GONE, _text(error)):
        return Sign.PEER_GONE
    return Sign.OWN


def summary(task: str, first: errors.Outcome, others: Sequence[errors.Outcome], size: int, within_s: float) -> str:
    """Return the message for a broadcast's error.

    The ranks in ``others`` failed at most ``within_s`` before or after.
    """
    sentence = f"{task} failed on rank {first.rank} of {size}: {_described(first)}"
    if not others:
        return sentence
    ranks = "1 rank" if len(others) == 1 else f"{len(others)} ranks"
    rounded = math.ceil(within_s * 10) / 10 if within_s < 10 else math.ceil(within_s)
    return f"{sentence}; {ranks} followed within {max(0.1, rounded):g} s ({ranks_of(others)})"


def _described(first: errors.Outcome) -> str:
    error = first.error
    if not isinstance(error, errors.TaskError):
        line = " ".join(_text(error).split())
        return _shortened(f"{type(error).__name__}: {line}" if line else type(error).__name__)
    place = re.compile(r"^.*? on node \d+ \(rank \d+, attempt \d+\) ")  # the message already states the place
    return _shortened(" ".join(place.sub("it ", str(error)).split()).rstrip("."))


def _shortened(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}..."


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  its __str__ is the user's code
        return ""
