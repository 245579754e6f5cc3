"""Classification of failed calls: the error class, its text, and the most useful one of several errors."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded

T = TypeVar("T")
_GRAVITY: tuple[type[ProviderError], ...] = (NotAuthorized, QuotaExceeded, NoCapacity, BadRequest, ProviderError)

AGAIN_S = 2.0  # seconds to wait after a transient failure
ELSEWHERE = "Take other types, zones or regions as well: Pool(Spec(...), Spec(...)) asks for one after the other."
# for each error class: regular expressions that match error codes, and sentences for users; the first match counts
Meanings = Sequence[tuple[type[ProviderError], Mapping[str, str]]]


class CallRefused(ProviderError):
    """A call was refused for a reason that only the caller can judge, or got no response.

    `ProviderError.retry_after_s` is set only if there was no response.
    """


def is_lost(error: ProviderError) -> bool:
    """Return whether the failed call may have been carried out: there was no response. After a refusal, it was not."""
    return isinstance(error, CallRefused | HostAway) and error.retry_after_s is not None


async def unless_unknown(call: Awaitable[T], *codes: str) -> T | None:
    """Return the result of a call; None: the cloud replied with one of these ``codes``, which mean that the requested
    resource does not exist.
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
    codes: str  # the regular expression in the table that matches the code
    sentence: str


def meaning(code: str, meanings: Meanings) -> Meaning | None:
    """Return the first entry of a table whose regular expression matches the code; None: there is no such entry."""
    for kind, sentences in meanings:
        for codes, sentence in sentences.items():
            if re.fullmatch(codes, code):
                return Meaning(kind, codes, sentence)
    return None


def until_raised(cloud: str) -> str:
    """Return the advice for an exhausted quota of an account."""
    return (
        f"This is a limit of the account, not {cloud}'s stock: until it is raised, ask for fewer nodes, or other types."
    )


def advised(error: ProviderError, cloud: str) -> ProviderError:
    """Add advice to an error about missing capacity or an exhausted quota, and return the error."""
    if isinstance(error, NoCapacity):
        error.advice = ELSEWHERE
    # without a time for a retry, the quota is exhausted until the cloud raises it
    elif isinstance(error, QuotaExceeded) and error.retry_after_s is None:
        error.advice = until_raised(cloud)
    return error


def quoting(sentence: str, code: str, words: str) -> str:
    """Return the sentence followed by the cloud's code and message in brackets.

    Only this function puts the message of a cloud, made safe by `redacted`, into an error.
    """
    words = words.strip().rstrip(".")
    return f"{sentence} ({code}: {words})" if words else f"{sentence} ({code})"


def redacted(text: str) -> str:
    """Remove texts that may be credentials, and shorten the rest."""
    text = re.sub(r"//[^/@\s]+@", "//", text)
    text = re.sub(r"[A-Za-z0-9+/=_%-]{100,}|(?<![\w+/=-])[A-Za-z0-9+/]{40}(?![\w+/=-])", "(secret)", text)
    return text if len(text) <= 400 else f"{text[:400]}..."


# --- choice among several errors --------------------------------------------------------------------------------------


def most_telling(errors: Sequence[ProviderError]) -> ProviderError:
    """Return the error that is most useful to the user; its message includes the other errors.

    An exhausted quota counts more than missing capacity. If one of the errors is transient, the returned error allows a
    retry, unless an authorization is missing.
    """
    kinds = {_gravity(error): error for error in reversed(errors)}  # for each kind, the first error
    worst, *others = [kinds[gravity] for gravity in sorted(kinds)]
    again = [error.retry_after_s for error in errors if error.retry_after_s is not None]
    also = "".join(f"; also: {other}" for other in others)
    retry_after_s = None if isinstance(worst, NotAuthorized) else min(again, default=None)
    combined = type(worst)(f"{worst}{also}", retry_after_s=retry_after_s, code=worst.code, advice=worst.advice)
    combined.kind = "; ".join(error.kind for error in errors) if all(error.kind for error in errors) else ""
    return combined


def _gravity(error: ProviderError) -> int:
    return next(place for place, kind in enumerate(_GRAVITY) if isinstance(error, kind))
