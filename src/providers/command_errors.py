"""Turn what a command says when it fails into an error with whose fault it is and the next step. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ..lazy_dataclass import dataclass
from .errors import HostAway, ProviderError
from .login_host import AGAIN_S, TIMED_OUT, Ended

SIGNALLED = range(129, 128 + 64 + 1)  # a shell adds the signal's number to 128; sbatch ends with 255 by itself


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a failure whose words match one of the ``patterns``. ``words``: it, as a clause for people.

    ``again_s``: the seconds after which the same may go better; None: it will not.
    """

    kind: type[ProviderError]
    words: str
    advice: str
    patterns: tuple[str, ...]  # in lower case or not
    again_s: float | None = None


def meant(text: str, meanings: Iterable[Meaning], sentence: Callable[[str], str]) -> ProviderError | None:
    """Return the error of the first meaning that fits. ``sentence`` makes its message of the meaning's words."""
    for each in meanings:
        if re.search("|".join(each.patterns), text, re.IGNORECASE):
            return each.kind(sentence(each.words), retry_after_s=each.again_s, advice=each.advice)
    return None


def interrupted(command: str, ended: Ended, where: str, quoted: str = "") -> HostAway | None:
    """Return the error of a command that a time limit or a signal has ended; None: it has ended by itself."""
    if ended.status in TIMED_OUT:
        return HostAway(f"{command} {where} did not end in time{quoted}", retry_after_s=AGAIN_S, code="TimedOut")
    if ended.status is None or ended.status in SIGNALLED:
        return HostAway(f"A signal ended {command} {where}{quoted}", retry_after_s=AGAIN_S, code="Signal")
    return None
