"""Finding the rank of a broadcast that failed first.

The other ranks fail as a consequence, and may be reported earlier.

The time of the reports is not enough: a failing process closes its connections before its node can report the failure.
So the errors of other ranks about a lost peer can arrive some milliseconds earlier.
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

# Failures within this time after the first report may be consequences of the same failure. The kernel may take 5 s to
# end a process that has tens of gigabytes of memory or several GPUs.
FOLLOWS_S = 5.0
ERROR_CHARS = 300
_PEER_GONE = (
    r"(?i)connection (was )?(likely )?(closed|reset|refused|aborted)|closed by peer|reset by peer|broken pipe"
    r"|socket closed|remote process exited|ncclRemoteError|peer (is )?(down|gone|lost)|recv, got 0 bytes"
    r"|heartbeat timeout|coordination service"
)


class Sign(IntEnum):
    """The kind of a failure.

    The smaller the number, the more likely this failure caused the failures of the other ranks.
    """

    OWN = 0  # the failure does not point to another rank
    ABORTED = 1  # the process aborted: libraries do so when they lose a peer, but also for errors of their own
    PEER_GONE = 2  # the failure is that another rank could not be reached


class Failure(NamedTuple):
    rank: int
    at: float  # time of the failure in seconds on the pool's clock
    sign: Sign


def first_of(failures: Sequence[Failure]) -> Failure:
    """Return the failure that most likely caused the others. ``failures`` must not be empty.

    Of the earliest failure and the failures within `FOLLOWS_S` after it, choose the one with the smallest `Sign`; of
    several such failures, choose the earliest.
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
    """Return the error message for a broadcast.

    The ranks in ``others`` failed at most ``within_s`` seconds before or after the first rank.
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
    # remove the place from the text, because the message already names it
    place = re.compile(r"^.*? on node \d+ \(rank \d+, attempt \d+\) ")
    return _shortened(" ".join(place.sub("it ", str(error)).split()).rstrip("."))


def _shortened(text: str) -> str:
    return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}..."


def _text(error: object) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  its __str__ is the user's code
        return ""
