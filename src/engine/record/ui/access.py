"""The rules that decide, for each HTTP request, whether it may see a page or act on a run. No I/O.

ACCESS-1: a request without the token shows nothing and does nothing.
ACCESS-2: a page of another site shows nothing and does nothing, whatever the browser adds to its requests.
ACCESS-3: the token for metrics shows the metrics, and nothing else.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from ....lazy_dataclass import dataclass

COOKIE = "outrider-ui"  # the port is appended to this cookie name, because all ports of a host share their cookies
METRICS = "/metrics"
# host names in the browser's address: of this computer or, if the port is forwarded, of the browser's computer
NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(.+?)(?::(\d{1,5}))?", re.ASCII)

Verdict = Literal["allowed", "enter", "no token", "other host", "other site"]


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """The data of an HTTP request that decide about access.

    ``headers``: lower-case name -> value. ``token``: the token in the address; "": none. ``path``: the path in the
    address.
    """

    method: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    token: str = ""
    path: str = "/"


class Access:
    """The rules of access to one server.

    Args:
        token: The token that the address shown to the user contains.
        port: The server's port; None: it listens on a unix socket.
        once: A token that works once, for the browser that `outrider ui` starts: other users can read its arguments.
        metrics: A token that allows only the metrics; "": there is none.
    """

    def __init__(self, token: str, port: int | None, once: str = "", metrics: str = "") -> None:
        self.token, self._port, self._once, self._metrics = token, port, once, metrics
        self.cookie = COOKIE if port is None else f"{COOKIE}-{port}"

    def verdict(self, request: AccessRequest) -> Verdict:
        """Return whether a request is allowed, or why not.

        "enter": it is allowed, and the reply must set the cookie.
        """
        if not self._is_ours(request.headers.get("host", "")):
            return "other host"
        acts = request.method not in ("GET", "HEAD")
        if not acts and (self._fits(request.token) or self._enters_once(request.token)):
            return "enter"
        if not self._fits(request.cookies.get(self.cookie, "")):
            return "allowed" if not acts and self._scrapes(request) else "no token"
        if request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "other site"
        if acts and not self._same_origin(request.headers):
            return "other site"
        return "allowed"

    def _is_ours(self, host: str) -> bool:
        """Return whether the browser uses a name of this computer for the server.

        Another name that resolves to 127.0.0.1 (DNS rebinding) would give another site's page the same origin as our
        pages.
        """
        match = _HOST.fullmatch(host.lower())
        if match is None or match[1] not in NAMES:
            return False
        return self._port is None or match[2] == str(self._port)

    def _same_origin(self, headers: Mapping[str, str]) -> bool:
        origin = urlsplit(headers.get("origin", ""))
        return origin.scheme == "http" and origin.netloc.lower() == headers.get("host", "").lower()

    def _scrapes(self, request: AccessRequest) -> bool:
        """Return whether a program requests the metrics, with the token in a header that browsers do not add by
        themselves.
        """
        scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
        fits = self._fits(credentials.strip()) or (self._metrics != "" and _same(credentials.strip(), self._metrics))
        return request.path == METRICS and scheme.lower() == "bearer" and fits

    def _fits(self, candidate: str) -> bool:
        return candidate != "" and _same(candidate, self.token)

    def _enters_once(self, candidate: str) -> bool:
        if not self._once or not _same(candidate, self._once):
            return False
        self._once = ""
        return True


def _same(candidate: str, token: str) -> bool:
    return hmac.compare_digest(candidate.encode(errors="replace"), token.encode())
