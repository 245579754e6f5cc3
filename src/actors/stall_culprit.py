"""The rank for which the other ranks of a hung broadcast wait, as far as stacks and last signs of life show it. Pure.

In a hung collective all ranks are silent, and all but one rank wait in the collective: that one rank is the culprit.
Stacks are texts from the nodes, in the format of `faulthandler`; the library frames before the first frame of the
user's own code show in which function the thread waits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..lazy_named_tuple import NamedTuple

MARGIN = 0.2  # a rank counts as silent first only if its silence is longer than the next rank's by this fraction
LEAST_S = 1.0
_FRAME = r'  File "(.*)", line (\d+|\?\?\?) in (.*)'
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
# patterns of library files in which ranks wait for each other; a function name follows where only some functions wait
_COLLECTIVE = (
    r"/torch/distributed/|/torch/nn/parallel/distributed\.py|/torch/autograd/graph\.py.*_engine_run_backward"
    r"|/jax/experimental/multihost_utils\.py|/jax/_src/distributed\.py|/mpi4py/|/horovod/|/deepspeed/comm/"
    r"|/cupyx/distributed/|/tensorflow/python/distribute/|/multiprocessing/.*\b(join|barrier)"
)


class Silent(NamedTuple):
    """A running rank that gives no sign of life. ``quiet_s``: seconds since its last sign of life, or since its
    start.
    """

    rank: int
    text: str
    quiet_s: float


class Culprit(NamedTuple):
    rank: int
    why: str  # the reason as a clause for people


def culprit(ranks: Sequence[Silent]) -> Culprit | None:
    """Return the rank for which the other ranks wait; None: it is unknown, or the broadcast has only one rank."""
    if len(ranks) < 2:
        return None
    frames = {each.rank: _frames(each.text) for each in ranks}
    if all(frames.values()):
        outside = [rank for rank, stack in frames.items() if not _waits(stack)]
        if len(outside) == 1:
            return Culprit(outside[0], f"it is in {_line(frames[outside[0]])}, and the others wait in a collective")
        odd = _odd({rank: _line(stack) for rank, stack in frames.items()})
        if odd is not None:
            return Culprit(odd, f"it is in {_line(frames[odd])}, and all others in {_other(odd, frames)}")
    return _first_silent(ranks)


def _odd(lines: dict[int, str]) -> int | None:
    """Return the only rank whose line of code differs from the line of all others (at least two); None: there is no
    such rank.
    """
    if len(lines) < 3 or len(set(lines.values())) != 2:
        return None
    alone = [rank for rank, line in lines.items() if list(lines.values()).count(line) == 1]
    return alone[0] if len(alone) == 1 else None


def _other(odd: int, frames: dict[int, list[re.Match[str]]]) -> str:
    return next(_line(stack) for rank, stack in frames.items() if rank != odd)


def _first_silent(ranks: Sequence[Silent]) -> Culprit | None:
    """Return the rank that fell silent clearly before all other ranks; None: there is no such rank."""
    first, second, *_ = sorted(ranks, key=lambda each: -each.quiet_s)
    if first.quiet_s - second.quiet_s <= max(LEAST_S, MARGIN * second.quiet_s):
        return None
    return Culprit(first.rank, f"it fell silent {first.quiet_s - second.quiet_s:.1f} s before the next one")


def _frames(text: str) -> list[re.Match[str]]:
    """Return the stack frames of the thread that runs the task, the innermost first. ``text``: the stacks of all
    threads.
    """
    frames: list[re.Match[str]] = []
    for line in text.split("\n"):
        if (frame := re.fullmatch(_FRAME, line)) is None:
            break
        frames.append(frame)
    return frames


def _waits(frames: Sequence[re.Match[str]]) -> bool:
    """Return whether the user's own code has called a function in which ranks wait for each other. ``frames``: the
    thread's stack.
    """
    for frame in frames:
        if re.search(_COLLECTIVE, f"{frame[1]} {frame[3]}"):
            return True
        if not any(each in frame[1] for each in _LIBRARIES):
            return False
    return False


def _line(frames: Sequence[re.Match[str]]) -> str:
    users = [frame for frame in frames if not any(each in frame[1] for each in _LIBRARIES)]
    frame = (users or frames)[0]
    return f"{frame[3]} ({frame[1].rpartition('/')[2]}:{frame[2]})"
