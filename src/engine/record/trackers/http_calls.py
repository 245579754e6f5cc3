"""HTTP requests to trackers, by the standard library.

They use the proxies of the environment, follow no redirects, and limit the time and size of replies. Each reply except
2xx becomes one of the three errors of `base`. Errors contain only the host of an address, as the path of a webhook may
be a secret. The server's text is shortened in errors.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPException, HTTPResponse, InvalidURL
from typing import IO, Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import HTTPErrorProcessor, HTTPSHandler, Request, build_opener

from ...api.printable import one_line
from .base import Away, Refused, Rejected, basic

TIMEOUT_S = 30.0  # the longest time without a byte from the server
ANSWER_S = 30.0  # time limit for a whole reply, from its first byte
ANSWER_BYTES = 4 * 1024 * 1024
MESSAGE_CHARS = 200  # a longer message of a server is cut to this length in errors
_ASKS = frozenset({401, 403, 404, 405, 407})  # HTTP codes that show a wrong token or address, not wrong content
_LATER = frozenset({408, 409, 423, 425, 429})


class _AsItIs(HTTPErrorProcessor):
    """Return each HTTP response as it is: follow no redirect, and raise no error.

    A redirect would change a POST to a GET, and send tokens to another host.
    """

    def http_response(self, request: Request, response: HTTPResponse) -> HTTPResponse:  # noqa: ARG002
        return response

    https_response = http_response


class Calls:
    """HTTP requests to one server.

    ``headers``: sent with each request. ``insecure``: True: the server's certificate is not checked.
    """

    def __init__(self, address: str, headers: Mapping[str, str], *, cafile: str = "", insecure: bool = False) -> None:
        login, _, self.host = urlsplit(address).netloc.rpartition("@")
        self.address, self._headers = address.replace(f"{login}@", "", 1) if login else address, dict(headers)
        if login:
            self._headers.setdefault("Authorization", basic(*login.partition(":")[::2]))
        context = None
        if urlsplit(address).scheme == "https":
            try:
                context = ssl.create_default_context(cafile=cafile or None)
            except OSError as error:
                raise Refused(f"the certificates in {cafile!r} cannot be used ({error.strerror or error})") from None
            if insecure:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._opener = build_opener(_AsItIs(), *([] if context is None else [HTTPSHandler(context=context)]))

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request with a JSON body. Return the JSON object of the reply.

        Raises:
            Away, Refused, Rejected: see `base`.
        """
        content = None if body is None else json.dumps(body).encode()
        answer = self.send(method, path, content, {"Content-Type": "application/json"})
        try:
            value = json.loads(answer or b"{}")
        except ValueError:
            raise Away(f"{self.host} answered no JSON: is this its address?") from None
        if not isinstance(value, dict):
            raise Away(f"{self.host} answered JSON of another form")
        return value

    def send(
        self, method: str, path: str, content: bytes | IO[bytes] | None, headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send a request, and return the reply. If the body is a file, ``headers`` must have Content-Length.

        Raises:
            Away, Refused, Rejected: see `base`.
        """
        request = Request(  # noqa: S310  the settings allow only http and https
            self.address + path,
            data=content,
            method=method,
            headers={"User-Agent": "outrider", **self._headers, **(headers or {})},
        )
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                read = self._read(answer)
                if 200 <= answer.status < 300:
                    return read
                raise self._failure(answer.status, answer.reason, read, answer.headers.get("Retry-After"))
        # these errors' texts contain a header or the whole address, and thus perhaps a secret
        except (InvalidURL, ValueError):
            raise Refused(
                f"a header or the path for {self.host} has a character that HTTP does not take, such as a line's end: "
                "look at the token and the address"
            ) from None
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise Refused(f"the certificate of {self.host} is not trusted here ({reason.verify_message})") from None
            text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
            raise Away(f"{self.host} does not answer ({one_line(str(text))})") from None

    def _read(self, answer: HTTPResponse) -> bytes:
        """Read a reply, but not longer than `ANSWER_S`: a server might send single bytes forever."""
        until, read = time.monotonic() + ANSWER_S, b""
        while len(read) < ANSWER_BYTES and (some := answer.read1(ANSWER_BYTES - len(read))):
            read += some
            if time.monotonic() > until:
                raise Away(f"{self.host} has not ended its answer for {ANSWER_S:g} s")
        return read

    def _failure(self, code: int, reason: str, text: bytes, retry_after: str | None) -> Exception:
        message = f"{self.host} answered {code} {_message(text) or one_line(reason)}".strip()
        if code in _LATER or code >= 500:
            return Away(message, _retry_after(retry_after))
        if code < 400:
            return Refused(f"{message}: redirects are not followed, so take the address that it leads to")
        if code in _ASKS:
            return Refused(message)
        return Rejected(message)


def _message(text: bytes) -> str:
    """Return the error message of a reply, as one line. For a JSON reply this is its field `message` or `error`."""
    shown_text = text.decode(errors="replace")
    try:
        value = json.loads(shown_text)
        if isinstance(value, dict):
            shown_text = str(value.get("message") or value.get("error") or shown_text)
    except ValueError:
        pass
    return one_line(shown_text)[:MESSAGE_CHARS]


def _retry_after(header: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header requests, as a number or a date (RFC 9110, 10.2.3); None:
    invalid.
    """
    if not header:
        return None
    if header.strip().isdecimal():
        return float(header)
    try:
        return max(0.0, (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
