"""Conversion of failed HTTP calls into errors, for all clouds with JSON interfaces. No I/O, no clock; `http` makes the
calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, NotAuthorized, ProviderError
from .call_failures import meant, passing, settled, with_reply
from .failures import CallRefused, Meanings, redacted
from .retries import Trouble

# the code of a failure without a response is one of these, or the name of an exception of httpx
TIMED_OUT: Final = "TimedOut"
UNREADABLE: Final = "UnreadableAnswer"
NO_TRUST: Final = "CertificateError"
# httpx raises these before it sends anything; after any other exception, the call may have been carried out
_UNREACHED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
MOST_WORDS = 1000  # of a body that is not JSON, so many characters are kept for the error's text


class FailingService(Protocol):
    """The parts of an `http.Service` that its errors name."""

    @property
    def name(self) -> str: ...

    @property
    def host(self) -> str: ...

    @property
    def meanings(self) -> Meanings: ...

    @property
    def again_after_s(self) -> Mapping[str, float]: ...

    @property
    def credentials(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFailure:
    """A failed call. ``code``: the service's own error code, or a name for the failure if there is no response.

    ``path``: without the query. ``retry_after_s``: seconds for which the service wants no further calls.
    """

    code: str
    message: str = ""
    method: str = "GET"
    path: str = ""
    status: int = 0  # HTTP status; 0: no response
    retry_after_s: float = 0.0
    trouble: Trouble | None = None

    @property
    def call(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def reads(self) -> bool:
        return self.method == "GET"

    @property
    def words(self) -> str:
        return redacted(self.message)


def trouble_of(code: str, status: int) -> Trouble | None:
    """Return the kind of a transient failure; None: the failure is not transient.

    A failure with a response is judged by its status, a failure without one by its code.
    """
    if status == 0:
        return None if code == NO_TRUST else "unreached" if code in _UNREACHED else "lost"
    if status == 429:
        return "throttled"
    if status == 408 or status >= 500:
        return "broken"
    return "lost" if code == UNREADABLE else None


def code_of(error: Exception) -> str:
    """Return the code for an exception of httpx."""
    text = f"{error} {error.__cause__ or ''}"
    return NO_TRUST if "CERTIFICATE_VERIFY_FAILED" in text else type(error).__name__


def retry_after_s(value: str, now: float) -> float:
    """Return the seconds of a Retry-After header (RFC 9110, 10.2.3: seconds or a date), else 0. ``now``: unix time."""
    if value.strip().isdigit():
        return float(value)
    at = date_of(value)
    return 0.0 if at is None else max(0.0, at - now)


def date_of(value: str) -> float | None:
    """Return the date in a header (RFC 9110, 5.6.7) in seconds since 1970; None: the value is not a date."""
    with suppress(ValueError, TypeError):
        date = parsedate_to_datetime(value)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return None


def translate(service: FailingService, failure: HttpFailure, *, unsure: bool) -> ProviderError:
    """Return the error for the caller, with the service's own ``code``. Its class says what can be done about it.

    ``unsure``: an earlier try of the same call may have been carried out.
    """
    error = (
        passing(service.name, failure, f"at {service.host}", unsure=unsure)
        or meant(failure, service.meanings, service.again_after_s)
        or _by_status(service, failure)
    )
    return settled(service.name, failure, error, unsure=unsure)


def _by_status(service: FailingService, failure: HttpFailure) -> ProviderError:
    if failure.code == NO_TRUST:
        return BadRequest(
            f"{service.host} shows a certificate that this computer does not trust: check its certificates "
            f"(SSL_CERT_FILE), and any proxy on the way"
        )
    if failure.status == 401:
        return NotAuthorized(
            with_reply(failure, f"{service.name} does not accept these credentials: {service.credentials}")
        )
    if failure.status == 403:
        return NotAuthorized(
            with_reply(failure, f"{service.name} does not allow {failure.call} with these credentials")
        )
    if failure.status in {400, 413, 422}:
        return BadRequest(with_reply(failure, f"{service.name} does not take {failure.call} as it is"))
    if 300 <= failure.status < 400:
        return BadRequest(f"{service.host} sends {failure.call} elsewhere: check the address")
    return CallRefused(with_reply(failure, f"{service.name} refused {failure.call}"))


def without(secret: str, text: str) -> str:
    """Return the text without a header's value, and without the key in the value (the part after "Bearer")."""
    for each in (secret, secret.rpartition(" ")[2]):
        text = text.replace(each, "(secret)") if each else text
    return text


def words_of(body: object) -> tuple[str, str]:
    """Return code and message of a typical error body, ``{"error": {"code": "x", "message": "y"}}``; empty texts if
    missing.
    """
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", ""
    words = [error.get(key) for key in ("message", "suggestion")]
    return str(error.get("code") or ""), " ".join(each.strip() for each in words if isinstance(each, str))
