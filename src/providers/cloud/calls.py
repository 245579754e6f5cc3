"""Calls to a cloud, over any protocol: rate limits, retries, the errors of failed calls, and lists in pages.

`Bucket` keeps the client within the cloud's rate limit. `retry` and `Tries` decide whether and when a call that failed
for a transient reason is repeated. `passing` and `meant` convert a failed call into the error for the caller: for a
transient failure, and by a table of the cloud's error codes (`Meanings`). `from_extra` imports packages of an extra,
which may not be installed.

CALL-1: if a call may have been carried out, its error says that the response is lost (`is_lost`), unless the cloud has
reported the call's result.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Literal, NamedTuple, Protocol, TypeVar

import anyio

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, HostAway, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded, Unreachable

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


# --- failed calls as errors -------------------------------------------------------------------------------------------


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
    # A call that may have been carried out must raise a `CallRefused` with `retry_after_s`: `is_lost` recognizes it.
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
    """Return the error that the table ``meanings`` has for a failure's error code; None: the table has no entry.

    ``again_after_s``: for some of the table's codes, the seconds until a retry may succeed. ``code``: look up this code
    instead of the failure's own. ``facts``: values for the placeholders in the table's sentences.
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


# --- retries ----------------------------------------------------------------------------------------------------------


TRY_S = 10.0  # each try of a call has at least this many seconds of the call's time
# Kinds of transient failures, and whether the call may have been carried out: "throttled" and "unreached": no; "broken"
# (the cloud failed) and "lost" (no response): perhaps.
Trouble = Literal["throttled", "unreached", "broken", "lost"]

# For each kind: the longest pause after the first try, which doubles after each further try; the longest pause of all;
# the number of tries. A throttled call has no limit on tries, because it succeeds at some time.
_BACK_OFF: dict[Trouble, tuple[float, float, float]] = {
    "throttled": (1.0, 10.0, float("inf")),
    "unreached": (0.5, 2.0, 4),
    "broken": (0.5, 5.0, 6),
    "lost": (0.5, 5.0, 6),
}


def retry(kind: Trouble | None, attempt: int, *, safe: bool, luck: float) -> float | None:
    """Return the seconds to wait before the next try; None: do not retry.

    ``attempt``: the number of the failed try, from 1. ``safe``: the call is idempotent. A call that was throttled or
    not sent was not carried out, so it is retried even if it is not idempotent. ``luck``: a random number in [0, 1),
    for full jitter ("Exponential Backoff And Jitter", AWS Architecture Blog).
    """
    if kind is None or (not safe and kind in {"broken", "lost"}):
        return None
    first, most, tries = _BACK_OFF[kind]
    if attempt >= tries:
        return None
    return luck * min(most, first * 2.0 ** min(attempt - 1, 30))


@dataclass(slots=True, kw_only=True)
class Tries:
    """The tries of one call. ``safe``: the call is idempotent. ``timeout_s``: seconds for all tries together."""

    safe: bool
    timeout_s: float
    unsure: bool = False  # whether an earlier try without a response may have been carried out
    tries: int = 0
    renewed: bool = False  # whether the credentials were renewed, which happens once per call

    @property
    def try_s(self) -> float:
        """Return the time limit of one try in seconds. A call that is not idempotent may have only one try, which gets
        all the time.
        """
        return max(TRY_S, self.timeout_s / 3) if self.safe else self.timeout_s

    def pause_s(self, trouble: Trouble | None, *, reads: bool, luck: float) -> float | None:
        """Record a failed try. Return the seconds until the next try; None: do not retry. ``reads``: the call changes
        nothing.
        """
        self.unsure = self.unsure or (not reads and trouble in {"broken", "lost"})
        return retry(trouble, self.tries, safe=self.safe, luck=luck)


# --- rate limits ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Bucket:
    """A token bucket without a clock: callers pass the time.

    If no token is available, the caller reserves the next token and waits until it is available.
    """

    capacity: float
    per_s: float
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.capacity

    def take(self, now: float) -> float:
        """Reserve a token. Return the seconds until the token is available. Later callers get later tokens."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.per_s)

    def give_back(self) -> None:
        """Return a token that was not used, because the caller has stopped waiting."""
        self._tokens = min(self.capacity, self._tokens + 1)

    def used(self, taken: float, now: float) -> None:
        """Record that the token taken at the time ``taken`` was used only at ``now``, because its request also had to
        wait for a token of another bucket.

        Without this correction, the next request could follow too soon.
        """
        self._refill(now)
        self._tokens -= min((now - taken) * self.per_s, 1.0)

    def throttled(self, now: float) -> None:
        """Remove the available tokens after the cloud refused a request: other users of the account have used the
        cloud's limit.
        """
        self._refill(now)
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)


async def wait_for_token(bucket: Bucket) -> None:
    """Wait until a token is available for the caller. On cancellation, the token is given back."""
    wait_s = bucket.take(anyio.current_time())
    if wait_s > 0:
        try:
            await anyio.sleep(wait_s)
        except BaseException:  # the wait was cancelled
            bucket.give_back()
            raise


# --- lists in pages ---------------------------------------------------------------------------------------------------


async def every_page(ask: Callable[[str], Awaitable[tuple[Iterable[T], str]]]) -> list[T]:
    """Return all items of a list.

    ``ask`` requests a page by its token (the first page: ``""``), and returns the page's items and the next token. The
    last page has no next token, or repeats its own token.
    """
    items: list[T] = []
    token = ""
    while True:
        page, more = await ask(token)
        items += page
        if not more or more == token:
            return items
        token = more


# --- optional packages ------------------------------------------------------------------------------------------------


@contextmanager
def from_extra(cloud: str, extra: str, *packages: str) -> Iterator[None]:
    """Return a context for imports of ``packages``, or of modules that need them.

    Raises:
        BadRequest: A package is missing; the error says how to install the extra.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").split(".")[0] not in packages:
            raise
        raise BadRequest(f"{cloud} needs a part that is not installed: pip install 'outrider[{extra}]'") from error
