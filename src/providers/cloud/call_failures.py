"""Errors of failed calls, for all clouds and whatever their interfaces speak: what passes, and what codes mean. No I/O.

CALL-1: a call that may have been carried out is told as one whose answer is lost (`failures.is_lost`), unless the
cloud has said what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ..errors import NotAuthorized, ProviderError, Unreachable
from .failures import AGAIN_S, CallRefused, Meanings, advised, meaning, quoting
from .retries import Trouble


class Failed(Protocol):
    """A failed call."""

    @property
    def code(self) -> str:
        """The cloud's own code, or the name of what went wrong if there is no answer."""
        ...

    @property
    def words(self) -> str:
        """The cloud's own, without secrets."""
        ...

    @property
    def call(self) -> str:
        """The call in words: ``GET /machines``."""
        ...

    @property
    def reads(self) -> bool:
        """True: the call changes nothing."""
        ...

    @property
    def trouble(self) -> Trouble | None:
        """The kind of a transient failure; None: a real answer, which another try would not change."""
        ...

    @property
    def retry_after_s(self) -> float:
        """The seconds for which the cloud asks to be left alone; 0: it has not asked."""
        ...


def passing(cloud: str, failure: Failed, where: str, *, unsure: bool) -> ProviderError | None:
    """The error of a transient failure; None for others. ``cloud``: its name; ``where``: it was looked for, as in
    ``at sky.example``. ``unsure``: the same call was made before, and may have been carried out then.
    """
    # Only a `CallRefused` that may be made again counts as lost.
    kind = CallRefused if unsure or failure.trouble in {"broken", "lost"} else ProviderError
    match failure.trouble:
        case None:
            return None
        case "throttled":
            text = with_reply(failure, f"{cloud} is called too often with this account ({failure.call})")
        case "unreached":
            text = f"{cloud} cannot be reached {where}: check this computer's network ({failure.code})"
            if not unsure:
                return Unreachable(text, retry_after_s=max(AGAIN_S, failure.retry_after_s), kind=f"no way to {cloud}")
        case "broken":
            text = with_reply(failure, f"{cloud} failed at {failure.call}")
        case "lost":
            text = f"{_unanswered(cloud, failure)} ({failure.code})"
    return kind(text, retry_after_s=max(AGAIN_S, failure.retry_after_s))


def meant(
    failure: Failed, meanings: Meanings, again_after_s: Mapping[str, float], *, code: str = "", **facts: str
) -> ProviderError | None:
    """The error that a table has for a failure's code, or for another ``code``; None: it has none.

    ``again_after_s``: by the table's codes. ``facts``: for the places in its sentences.
    """
    match = meaning(code or failure.code, meanings)
    if match is None:
        return None
    sentence = match.sentence.format_map(facts) if facts else match.sentence
    return match.kind(with_reply(failure, sentence), retry_after_s=again_after_s.get(match.codes))


def settled(cloud: str, failure: Failed, error: ProviderError, *, unsure: bool) -> ProviderError:
    """The error as its caller gets it: with the code, and with advice. ``unsure``: as `passing` has it."""
    if unsure and isinstance(error, NotAuthorized):  # says nothing about the earlier call
        error = CallRefused(f"{_unanswered(cloud, failure)}, and now {error}", retry_after_s=AGAIN_S)
    error.code = failure.code
    return advised(error, cloud)


def with_reply(failure: Failed, sentence: str) -> str:
    """The sentence, with the cloud's reply in brackets."""
    return quoting(sentence, failure.code, failure.words)


def _unanswered(cloud: str, failure: Failed) -> str:
    text = f"{cloud} did not answer {failure.call}"
    return text if failure.reads else f"{text}: whether it was done is not known"
