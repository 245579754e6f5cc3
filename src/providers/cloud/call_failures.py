"""Conversion of failed calls into errors, for every cloud and protocol: transient failures, and the meanings of error
codes. No I/O.

CALL-1: if a call may have been carried out, its error says that the response is lost (`failures.is_lost`), unless the
cloud has reported the call's result.
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
        """Return the cloud's own code, or the name of the failure if there is no response."""
        ...

    @property
    def words(self) -> str:
        """Return the cloud's own message, without secrets."""
        ...

    @property
    def call(self) -> str:
        """Return the call for display: ``GET /machines``."""
        ...

    @property
    def reads(self) -> bool:
        """Return whether the call changes nothing in the cloud."""
        ...

    @property
    def trouble(self) -> Trouble | None:
        """Return the kind of a transient failure; None: a permanent failure, which a retry would not change."""
        ...

    @property
    def retry_after_s(self) -> float:
        """Return the seconds for which the cloud asks for no further calls; 0: not given."""
        ...


def passing(cloud: str, failure: Failed, where: str, *, unsure: bool) -> ProviderError | None:
    """Return the error for a transient failure; None for other failures.

    ``cloud``: the cloud's name. ``where``: the address of the service, such as ``at sky.example``. ``unsure``: an
    earlier try of the same call may have been carried out.
    """
    # Only a `CallRefused` with `retry_after_s` counts as a lost call (`failures.is_lost`).
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
    """Return the error that a table of meanings has for a failure's code; None: the table has no entry.

    ``again_after_s``: seconds until a retry may succeed, by the table's codes. ``code``: look up this code instead of
    the failure's own. ``facts``: values for the placeholders in the table's sentences.
    """
    match = meaning(code or failure.code, meanings)
    if match is None:
        return None
    sentence = match.sentence.format_map(facts) if facts else match.sentence
    return match.kind(with_reply(failure, sentence), retry_after_s=again_after_s.get(match.codes))


def settled(cloud: str, failure: Failed, error: ProviderError, *, unsure: bool) -> ProviderError:
    """Complete an error for the caller: add the failure's code and advice. ``unsure``: as in `passing`."""
    # this refusal concerns only the last try: an earlier try may have been carried out
    if unsure and isinstance(error, NotAuthorized):
        error = CallRefused(f"{_unanswered(cloud, failure)}, and now {error}", retry_after_s=AGAIN_S)
    error.code = failure.code
    return advised(error, cloud)


def with_reply(failure: Failed, sentence: str) -> str:
    """Return the sentence with the cloud's message in brackets."""
    return quoting(sentence, failure.code, failure.words)


def _unanswered(cloud: str, failure: Failed) -> str:
    text = f"{cloud} did not answer {failure.call}"
    return text if failure.reads else f"{text}: whether it was done is not known"
