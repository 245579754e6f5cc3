"""Classification of failed calls: the error class, its text, and the most useful one of several errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded

T = TypeVar("T")
_GRAVITY: tuple[type[ProviderError], ...] = (NotAuthorized, QuotaExceeded, NoCapacity, BadRequest, ProviderError)

AGAIN_S = 2.0  # seconds, the pause after transient failures
ELSEWHERE = "Take other types, zones or regions as well: Pool(Spec(...), Spec(...)) asks for one after the other."
# For each error class: regular expressions for whole codes, and their meanings. The first match applies.
Meanings = Sequence[tuple[type[ProviderError], Mapping[str, str]]]


class CallRefused(ProviderError):
    """A call failed for a reason that only the caller can judge, or without a response.

    `ProviderError.retry_after_s` is set if there was no response.
    """


def is_lost(error: ProviderError) -> bool:
    """Return whether the failed call may have been carried out. A refusal shows that it was not."""
    return isinstance(error, CallRefused | HostAway) and error.retry_after_s is not None


async def unless_unknown(call: Awaitable[T], *codes: str) -> T | None:
    """Return the result of a call; None: the cloud replied with one of these ``codes`` that the thing does not
    exist.
    """
    try:
        return await call
    except ProviderError as error:
        if error.code not in codes:
            raise
        return None


# --- texts of errors --------------------------------------------------------------------------------------------------


class Meaning(NamedTuple):
    kind: type[ProviderError]
    codes: str  # the matching expression
    sentence: str


def meaning(code: str, meanings: Meanings) -> Meaning | None:
    """Return the first meaning that a table has for a code."""
    for kind, sentences in meanings:
        for codes, sentence in sentences.items():
            if re.fullmatch(codes, code):
                return Meaning(kind, codes, sentence)
    return None


def until_raised(cloud: str) -> str:
    """Return the advice for an exhausted quota."""
    return (
        f"This is a limit of the account, not {cloud}'s stock: until it is raised, ask for fewer nodes, or other types."
    )


def advised(error: ProviderError, cloud: str) -> ProviderError:
    """Return the same error, with advice for missing capacity or an exhausted quota."""
    if isinstance(error, NoCapacity):
        error.advice = ELSEWHERE
    elif isinstance(error, QuotaExceeded) and error.retry_after_s is None:  # such a quota does not recover by itself
        error.advice = until_raised(cloud)
    return error


def quoting(sentence: str, code: str, words: str) -> str:
    """Return the sentence with the cloud's own message, `redacted`, in brackets. No other code quotes the message."""
    words = words.strip().rstrip(".")
    return f"{sentence} ({code}: {words})" if words else f"{sentence} ({code})"


def redacted(text: str) -> str:
    """Remove texts that may be credentials, and shorten the rest."""
    text = re.sub(r"//[^/@\s]+@", "//", text)
    text = re.sub(r"[A-Za-z0-9+/=_%-]{100,}|(?<![\w+/=-])[A-Za-z0-9+/]{40}(?![\w+/=-])", "(secret)", text)
    return text if len(text) <= 400 else f"{text[:400]}..."


# --- choice among several errors --------------------------------------------------------------------------------------


def most_telling(errors: Sequence[ProviderError]) -> ProviderError:
    """Return the error that the user can do most about; its message includes the others.

    A quota outranks missing capacity. The result allows a retry if one of the errors is transient, unless an
    authorization is missing.
    """
    kinds = {_gravity(error): error for error in reversed(errors)}  # the first error of each kind
    worst, *others = [kinds[gravity] for gravity in sorted(kinds)]
    again = [error.retry_after_s for error in errors if error.retry_after_s is not None]
    also = "".join(f"; also: {other}" for other in others)
    retry_after_s = None if isinstance(worst, NotAuthorized) else min(again, default=None)
    combined = type(worst)(f"{worst}{also}", retry_after_s=retry_after_s, code=worst.code, advice=worst.advice)
    combined.kind = "; ".join(error.kind for error in errors) if all(error.kind for error in errors) else ""
    return combined


def _gravity(error: ProviderError) -> int:
    return next(place for place, kind in enumerate(_GRAVITY) if isinstance(error, kind))
