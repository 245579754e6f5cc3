"""Meanings of failed calls over HTTP, for all clouds that speak JSON. No I/O, no clock; `http` makes the calls."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Final

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, NotAuthorized, ProviderError
from .call_failures import meant, passing, settled, with_reply
from .failures import CallRefused, redacted
from .retries import Trouble

if TYPE_CHECKING:
    from .http import Service

# Codes of failures without an answer of the service, besides the names of httpx's exceptions.
TIMED_OUT: Final = "TimedOut"
UNREADABLE: Final = "UnreadableAnswer"
NO_TRUST: Final = "CertificateError"
# httpx: there was no connection, so nothing was asked. All its other exceptions leave open what was carried out.
_UNREACHED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
MOST_WORDS = 1000  # characters of a body that is no JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpFailure:
    """A failed call. ``code``: the service's own, or the name of what went wrong if there is no answer.

    ``path`` is without its query. ``retry_after_s``: for so long the service wants to be left alone.
    """

    code: str
    message: str = ""
    method: str = "GET"
    path: str = ""
    status: int = 0  # 0 without an answer
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
    """The kind of transient failure that a status or, without an answer, a code stands for."""
    if status == 0:
        return None if code == NO_TRUST else "unreached" if code in _UNREACHED else "lost"
    if status == 429:
        return "throttled"
    if status == 408 or status >= 500:
        return "broken"
    return "lost" if code == UNREADABLE else None


def code_of(error: Exception) -> str:
    """The code of what httpx has raised."""
    text = f"{error} {error.__cause__ or ''}"
    return NO_TRUST if "CERTIFICATE_VERIFY_FAILED" in text else type(error).__name__


def retry_after_s(value: str, now: float) -> float:
    """Seconds of a Retry-After header (RFC 9110, 10.2.3: seconds or a date), 0 without. ``now``: since 1970."""
    if value.strip().isdigit():
        return float(value)
    at = date_of(value)
    return 0.0 if at is None else max(0.0, at - now)


def date_of(value: str) -> float | None:
    """The time of a header's date (RFC 9110, 5.6.7) in seconds since 1970; None where there is none."""
    with suppress(ValueError, TypeError):
        date = parsedate_to_datetime(value)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    return None


def translate(service: Service, failure: HttpFailure, *, unsure: bool) -> ProviderError:
    """The error for the caller, whose class says what can be done about it; with the service's own ``code``.

    ``unsure``: the same call was made before, and may have been carried out then.
    """
    error = (
        passing(service.name, failure, f"at {service.host}", unsure=unsure)
        or meant(failure, service.meanings, service.again_after_s)
        or _by_status(service, failure)
    )
    return settled(service.name, failure, error, unsure=unsure)


def _by_status(service: Service, failure: HttpFailure) -> ProviderError:
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
    """The text without the header's value, or what of it follows its scheme ("Bearer")."""
    for each in (secret, secret.rpartition(" ")[2]):
        text = text.replace(each, "(secret)") if each else text
    return text


def words_of(body: object) -> tuple[str, str]:
    """Code and message of a usual error body, ``{"error": {"code": "x", "message": "y"}}``; empty where it has none."""
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", ""
    words = [error.get(key) for key in ("message", "suggestion")]
    return str(error.get("code") or ""), " ".join(each.strip() for each in words if isinstance(each, str))
