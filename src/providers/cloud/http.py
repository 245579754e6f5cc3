"""JSON calls over HTTP to one cloud: `HttpApi` with its rate limits, retries and errors.

A `Service` describes the cloud's interface, an `Access` has the credentials. A failed call is an `HttpFailure`, which
`translate` converts into the error for the caller. Opening an `HttpApi` imports httpx.
"""

from __future__ import annotations

import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cache
from time import time
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import anyio

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, NotAuthorized, ProviderError
from ..shared.threads import in_thread
from . import calls
from .calls import (
    AGAIN_S,
    Bucket,
    CallRefused,
    Meanings,
    Trouble,
    from_extra,
    meant,
    passing,
    redacted,
    settled,
    wait_for_token,
    with_reply,
)

if TYPE_CHECKING:
    import ssl

    import httpx


CONNECT_S = 5.0
CLOSE_S = 5.0
READS = frozenset({"GET", "HEAD"})
SAFE = READS | {"PUT", "DELETE"}  # methods that are safe to repeat (idempotent by RFC 9110, 9.2.2)


def words_of(body: object) -> tuple[str, str]:
    """Return code and message of a typical error body, ``{"error": {"code": "x", "message": "y"}}``; empty texts if
    missing.
    """
    error = body.get("error") if isinstance(body, Mapping) else None
    if not isinstance(error, Mapping):
        return "", ""
    words = [error.get(key) for key in ("message", "suggestion")]
    return str(error.get("code") or ""), " ".join(each.strip() for each in words if isinstance(each, str))


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One cloud's interface.

    Args:
        name: The name of the cloud.
        extra: The extra of Outrider that installs httpx.
        limits: Rate limits by name: the size of a burst, and the requests per second after it.
        limits_of: Returns the names of the limits that apply to a request (method, path).
        meanings: Errors by code; errors with other codes are classified by HTTP status.
        again_after_s: Seconds until a retry may succeed, by the codes of ``meanings``.
        words_of: Returns the code and message in an error's body.
        refuses: Returns whether an answer is an error in spite of a status of success.
        troubles: Codes of transient failures whose status does not show that they are transient.
        credentials: What the user should check if the credentials are refused.
        header: The header that carries the credentials.
    """

    name: str
    extra: str
    base_url: str
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    limits_of: Callable[[str, str], Sequence[str]] = lambda method, path: ()  # noqa: ARG005
    meanings: Meanings = ()
    again_after_s: Mapping[str, float] = field(default_factory=dict)
    words_of: Callable[[object], tuple[str, str]] = words_of
    refuses: Callable[[object], bool] = lambda answer: False  # noqa: ARG005
    troubles: Mapping[str, calls.Trouble] = field(default_factory=dict)
    credentials: str = "check them"
    header: str = "Authorization"

    @property
    def host(self) -> str:
        return urlsplit(self.base_url).netloc.rpartition("@")[2]


class Access(Protocol):
    """The credentials for a service, which are sent as a header. A key that does not change is a `Key`."""

    async def header(self) -> str:
        """Return the value of ``Service.header``.

        Raises:
            NotAuthorized: There are no credentials.
        """
        ...

    async def renew(self) -> bool:
        """Get new credentials after the service refused the present ones; return False if there are none."""
        ...


@dataclass(frozen=True, slots=True)
class Key:
    """An API key. ``scheme``: the text before the key in the header, such as ``Bearer``; may be empty."""

    text: str = field(repr=False)
    scheme: str = "Bearer"

    async def header(self) -> str:
        return f"{self.scheme} {self.text}".lstrip()

    async def renew(self) -> bool:
        return False


class Expiring(ABC):
    """The base class of credentials that expire (an `Access`). Tasks that need a new token share one request."""

    def __init__(self) -> None:
        self._renewing = anyio.Lock()

    @property
    @abstractmethod
    def token(self) -> str:
        """Return the last token; empty: there was none."""

    @property
    @abstractmethod
    def expired(self) -> bool:
        """Return whether the token has expired or is about to."""

    @abstractmethod
    async def refresh(self) -> None:
        """Get another token.

        Raises:
            NotAuthorized: The credentials are no longer valid.
            ProviderError: The token service does not respond.
        """

    async def header(self) -> str:
        async with self._renewing:
            if not self.token or self.expired:
                await self.refresh()
        return f"Bearer {self.token}"

    async def renew(self) -> bool:
        async with self._renewing:
            await self.refresh()
        return True


class HttpApi:
    """One service with one set of credentials: ``async with HttpApi.open(service, access) as api``.

    Any number of tasks may use an instance at the same time; they share its connections and rate limits. Proxies and
    certificates are those of the environment, as httpx reads them.
    """

    def __init__(
        self,
        service: Service,
        access: Access,
        client: httpx.AsyncClient,
        *,
        luck: Callable[[], float] = random.random,
    ) -> None:
        """Use `open` instead. ``client`` has the service's base URL."""
        self.service = service
        self._access, self._client, self._luck = access, client, luck
        self._buckets = {name: Bucket(*limit) for name, limit in service.limits.items()}
        # held by a task that waits for several rate limits: one such task waits at a time
        self._with_several = anyio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, service: Service, access: Access) -> AsyncIterator[HttpApi]:
        """Open an interface. No request is sent yet.

        Raises:
            BadRequest: httpx is not installed, or the address is not a URL.
        """
        check_url(service.base_url)
        # in a thread, because the first call reads the trusted certificates from disk
        client = await in_thread(_new_client, service)
        try:
            yield cls(service, access, client)
        finally:
            with anyio.move_on_after(CLOSE_S, shield=True):
                await client.aclose()

    async def turn(self, method: str, path: str) -> None:
        """Wait until the rate limits allow a request with this method and path. Safe to cancel.

        For callers that shield `call` from cancellation: they wait here first, and then call with ``turn=True``, so
        that `call` does not wait again.
        """
        buckets = [self._buckets[name] for name in self.service.limits_of(method, path)]
        if len(buckets) < 2:
            await self._wait_for_all(buckets)
            return
        async with self._with_several:
            await self._wait_for_all(buckets)

    async def _wait_for_all(self, buckets: Sequence[Bucket]) -> None:
        taken: list[tuple[Bucket, float]] = []
        try:
            for bucket in buckets:
                await wait_for_token(bucket)
                taken.append((bucket, anyio.current_time()))
        except BaseException:  # also on cancellation: return the tokens, as no request was sent
            for bucket, _ in taken:
                bucket.give_back()
            raise
        for bucket, at in taken:
            bucket.used(at, anyio.current_time())

    async def call(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        idempotent: bool | None = None,
        turn: bool = False,
        lost_before: bool = False,
    ) -> Any:
        """Send a request and return the JSON of the response; None: the response is empty.

        Transient failures are retried for ``timeout_s`` seconds, not counting waits for this client's own rate limits.
        After a lost response, only idempotent requests are repeated: by default those whose method is in `SAFE`.
        Cancellation is safe, but the call may have been carried out.

        Args:
            method: The HTTP method.
            path: The path below the service's base URL.
            body: The JSON to send.
            params: The query.
            timeout_s: Seconds for all tries together.
            idempotent: Whether the request may be repeated after a lost response. None: if its method is in `SAFE`.
            turn: The caller has already awaited `turn` for the first try.
            lost_before: This call repeats an earlier call that got no response.

        Raises:
            ProviderError: The class says what can be done about the failure; the error has the service's ``code``.
                `calls.is_lost` says whether the call may have been carried out.
        """
        safe = method in SAFE if idempotent is None else idempotent
        call = _Call(method, path, body, params, turn, left_s=timeout_s, safe=safe, timeout_s=timeout_s)
        call.unsure = lost_before
        while True:
            failure = await self._try(call)
            if failure is None:
                return call.answer
            pause_s = await self._pause(call, failure)
            if pause_s is None or pause_s >= call.left_s:
                raise translate(self.service, failure, unsure=call.unsure)
            call.left_s -= pause_s
            await anyio.sleep(pause_s)

    def part(self, answer: object, kind: type[Any], *names: str) -> Any:
        """Return the value at the path ``names`` in a response (no names: the whole response), after a check of its
        type.

        Raises:
            CallRefused: The response does not have this form, so it is not from this service.
        """
        part = answer
        for name in names:
            part = part.get(name) if isinstance(part, dict) else None
        if not isinstance(part, kind):
            problem = f"{self.service.name}'s answer is not as it should be"
            raise CallRefused(problem, retry_after_s=AGAIN_S, code=UNREADABLE)
        return part

    async def _try(self, call: _Call) -> HttpFailure | None:
        """Try the call once, and return the failure. None: success; the response is in ``call.answer``."""
        call.tries += 1
        if not call.turn:
            await self.turn(call.method, call.path)
        call.turn = False
        header = await self._access.header()
        began = anyio.current_time()
        failure: HttpFailure | None = HttpFailure(code=TIMED_OUT)  # stays if the try is not over in time
        with anyio.move_on_after(min(call.try_s, call.left_s)):
            failure = await self._ask(call, header)
        call.left_s -= anyio.current_time() - began
        if failure is None:
            return None
        status, code = failure.status, failure.code
        return replace(
            failure,
            method=call.method,
            path=call.path,
            trouble=self.service.troubles.get(code) or trouble_of(code, status),
            message=without(header, failure.message),
        )

    async def _ask(self, call: _Call, header: str) -> HttpFailure | None:
        import httpx

        try:
            response = await self._client.request(
                call.method, call.path, json=call.body, params=call.params, headers={self.service.header: header}
            )
        except httpx.HTTPError as error:
            return HttpFailure(code=code_of(error), message=str(error))
        except httpx.InvalidURL as error:
            raise BadRequest(f"{call.path!r} is no path: {error}") from None
        if response.is_success:
            try:
                call.answer = json.loads(response.content) if response.content.strip() else None
            except ValueError:
                return HttpFailure(code=UNREADABLE, status=response.status_code)
            if not self.service.refuses(call.answer):
                return None
        code, message = self._words(response)
        return HttpFailure(
            code=code or f"HTTP {response.status_code}",
            message=message,
            status=response.status_code,
            retry_after_s=retry_after_s(response.headers.get("Retry-After", ""), time()),
        )

    def _words(self, response: httpx.Response) -> tuple[str, str]:
        try:
            return self.service.words_of(json.loads(response.content))
        except ValueError:
            text = response.text.strip()
            # an HTML page would not be readable in an error's sentence
            return "", "" if text.startswith("<") else text[:MOST_WORDS]

    async def _pause(self, call: _Call, failure: HttpFailure) -> float | None:
        """Return the seconds to wait before the next try of a failed call; None: do not retry."""
        if failure.status == 401 and not call.renewed:
            call.renewed = True
            return 0.0 if await self._access.renew() else None
        if failure.trouble == "throttled":
            for name in self.service.limits_of(call.method, call.path):
                self._buckets[name].throttled(anyio.current_time())
        pause_s = call.pause_s(failure.trouble, reads=call.method in READS, luck=self._luck())
        return None if pause_s is None else max(pause_s, failure.retry_after_s)


@dataclass(slots=True)
class _Call(calls.Tries):
    method: str
    path: str
    body: object
    params: Mapping[str, str] | None
    turn: bool  # the caller has already waited for the rate limits of the next try
    left_s: float
    answer: Any = None


def check_url(url: str, also: Callable[[str], object] = lambda url: True) -> None:  # noqa: ARG005
    """Raise BadRequest if a URL is not an HTTP URL. ``also``: a further check, by the cloud's own client library."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0 and bool(also(url))
    except ValueError:
        valid = False
    if not valid:
        raise BadRequest(f"endpoint_url={url.rpartition('@')[2]!r} is no URL: write it as in http://localhost:4566")


def _new_client(service: Service) -> httpx.AsyncClient:
    with from_extra(service.name, service.extra, "httpx", "httpcore", "h11", "certifi", "idna"):
        import httpx
    return httpx.AsyncClient(
        base_url=service.base_url.rstrip("/"),
        # no timeout for reads and writes, because each call has its own deadline
        timeout=httpx.Timeout(None, connect=CONNECT_S),
        headers={"User-Agent": "outrider", "Accept": "application/json"},
        verify=_certificates(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")),
    )


@cache
def _certificates(file: str | None, folder: str | None) -> ssl.SSLContext:  # noqa: ARG001 - part of the cache key; httpx reads the variables itself
    """Return the trusted certificates. They are cached for the two environment variables that name them, because
    reading takes 25 ms.
    """
    import httpx

    return httpx.create_ssl_context()


# --- failed calls as errors -------------------------------------------------------------------------------------------


# the code of a failure without a response is one of these, or the name of an exception of httpx
TIMED_OUT: Final = "TimedOut"
UNREADABLE: Final = "UnreadableAnswer"
NO_TRUST: Final = "CertificateError"
# httpx raises these before it sends anything; after any other exception, the call may have been carried out
_UNREACHED = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ProxyError", "UnsupportedProtocol"})
MOST_WORDS = 1000  # of a body that is not JSON, so many characters are kept for the error's text


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


def translate(service: Service, failure: HttpFailure, *, unsure: bool) -> ProviderError:
    """Return the error for the caller, with the service's own ``code``. Its class says what can be done about it.

    ``unsure``: an earlier try of the same call may have been carried out.
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
    """Return the text without a header's value, and without the key in the value (the part after "Bearer")."""
    for each in (secret, secret.rpartition(" ")[2]):
        text = text.replace(each, "(secret)") if each else text
    return text
