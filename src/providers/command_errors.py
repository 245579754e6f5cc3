"""Classify a failed command by its error output. The resulting error says who has to act, and what to do next.
No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ..lazy_dataclass import dataclass
from .errors import HostAway, ProviderError
from .login_host import AGAIN_S, TIMED_OUT, Ended

# Exit codes of a shell whose command was ended by a signal: 128 plus the signal's number. 255 is not one of them:
# sbatch itself exits with 255.
SIGNALLED = range(129, 128 + 64 + 1)


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning of a failure whose output matches one of the ``patterns``. ``words``: the meaning, as a clause.

    ``again_s``: seconds after which a retry may succeed; None: no retry can succeed.
    """

    kind: type[ProviderError]
    words: str
    advice: str
    patterns: tuple[str, ...]  # regular expressions; upper and lower case count as equal
    again_s: float | None = None


def meant(text: str, meanings: Iterable[Meaning], sentence: Callable[[str], str]) -> ProviderError | None:
    """Return the error for the first meaning whose patterns match ``text``; None: no meaning matches. ``sentence``
    makes a message of the meaning's words.
    """
    for each in meanings:
        if re.search("|".join(each.patterns), text, re.IGNORECASE):
            return each.kind(sentence(each.words), retry_after_s=each.again_s, advice=each.advice)
    return None


def interrupted(command: str, ended: Ended, where: str, quoted: str = "") -> HostAway | None:
    """Return the error for a command that a time limit or a signal has ended; None: the command exited by itself."""
    if ended.status in TIMED_OUT:
        return HostAway(f"{command} {where} did not end in time{quoted}", retry_after_s=AGAIN_S, code="TimedOut")
    if ended.status is None or ended.status in SIGNALLED:
        return HostAway(f"A signal ended {command} {where}{quoted}", retry_after_s=AGAIN_S, code="Signal")
    return None
