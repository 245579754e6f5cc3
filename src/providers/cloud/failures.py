"""Meanings of failed calls for whoever made them: the class of error, its words, and which of several to tell."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded

T = TypeVar("T")
_GRAVITY: tuple[type[ProviderError], ...] = (NotAuthorized, QuotaExceeded, NoCapacity, BadRequest, ProviderError)

AGAIN_S = 2.0  # pause after transient failures
ELSEWHERE = "Take other types, zones or regions as well: Pool(Spec(...), Spec(...)) asks for one after the other."
# For each kind of error, what codes mean (regular expressions for whole codes): the first that matches holds.
Meanings = Sequence[tuple[type[ProviderError], Mapping[str, str]]]


class CallRefused(ProviderError):
    """The cloud refused a call for a reason that is nobody's fault or that only the caller understands, or did not
    answer, and then `ProviderError.retry_after_s` is set.
    """


def is_lost(error: ProviderError) -> bool:
    """Return whether the failed call may have been carried out all the same. A refusal shows that it was not."""
    return isinstance(error, CallRefused | HostAway) and error.retry_after_s is not None


async def unless_unknown(call: Awaitable[T], *codes: str) -> T | None:
    """The answer of a call; None: by one of these ``codes`` the cloud says that there is no such thing."""
    try:
        return await call
    except ProviderError as error:
        if error.code not in codes:
            raise
        return None


# --- what an error says -----------------------------------------------------------------------------------------------


class Meaning(NamedTuple):
    kind: type[ProviderError]
    codes: str  # the expression that matched
    sentence: str


def meaning(code: str, meanings: Meanings) -> Meaning | None:
    """The first meaning that a table has for a code."""
    for kind, sentences in meanings:
        for codes, sentence in sentences.items():
            if re.fullmatch(codes, code):
                return Meaning(kind, codes, sentence)
    return None


def until_raised(cloud: str) -> str:
    """The advice for whoever has reached a quota."""
    return (
        f"This is a limit of the account, not {cloud}'s stock: until it is raised, ask for fewer nodes, or other types."
    )


def advised(error: ProviderError, cloud: str) -> ProviderError:
    """The same error, with the advice for want of room, or for a quota that is reached."""
    if isinstance(error, NoCapacity):
        error.advice = ELSEWHERE
    elif isinstance(error, QuotaExceeded) and error.retry_after_s is None:  # it does not pass by itself
        error.advice = until_raised(cloud)
    return error


def quoting(sentence: str, code: str, words: str) -> str:
    """The sentence with the cloud's own words, which are `redacted`, in brackets. They are quoted nowhere else."""
    words = words.strip().rstrip(".")
    return f"{sentence} ({code}: {words})" if words else f"{sentence} ({code})"


def redacted(text: str) -> str:
    """Remove what may be a credential, and shorten the text."""
    text = re.sub(r"//[^/@\s]+@", "//", text)
    text = re.sub(r"[A-Za-z0-9+/=_%-]{100,}|(?<![\w+/=-])[A-Za-z0-9+/]{40}(?![\w+/=-])", "(secret)", text)
    return text if len(text) <= 400 else f"{text[:400]}..."


# --- of several errors ------------------------------------------------------------------------------------------------


def most_telling(errors: Sequence[ProviderError]) -> ProviderError:
    """The error that its reader can do most about; its message includes the others.

    A quota comes before missing capacity. The result may be retried if one of the errors is transient, except after
    missing authorization.
    """
    kinds = {_gravity(error): error for error in reversed(errors)}  # the first of each kind
    worst, *others = [kinds[gravity] for gravity in sorted(kinds)]
    again = [error.retry_after_s for error in errors if error.retry_after_s is not None]
    also = "".join(f"; also: {other}" for other in others)
    retry_after_s = None if isinstance(worst, NotAuthorized) else min(again, default=None)
    combined = type(worst)(f"{worst}{also}", retry_after_s=retry_after_s, code=worst.code, advice=worst.advice)
    combined.kind = "; ".join(error.kind for error in errors) if all(error.kind for error in errors) else ""
    return combined


def _gravity(error: ProviderError) -> int:
    return next(place for place, kind in enumerate(_GRAVITY) if isinstance(error, kind))
