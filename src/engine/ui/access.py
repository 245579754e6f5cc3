"""The decision, for each request, whether it may see a page or act on a run. No I/O.

ACCESS-1: without the token nothing is shown, and nothing is done.
ACCESS-2: a page of another site shows nothing and does nothing, whatever the browser adds to its requests.
ACCESS-3: the token for metrics shows the metrics, and nothing else.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

from ...lazy_dataclass import dataclass

COOKIE = "outrider-ui"  # and the port: cookies are of a host, with all of its ports
METRICS = "/metrics"
NAMES = ("127.0.0.1", "localhost", "[::1]")  # of this computer, at the browser's end of a forwarded port too
_HOST = re.compile(r"(.+?)(?::(\d{1,5}))?", re.ASCII)

Verdict = Literal["allowed", "enter", "no token", "other host", "other site"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request. ``headers``: by lower-case name. ``token``: of its address; empty: none. ``path``: which is asked."""

    method: str
    headers: Mapping[str, str]
    cookies: Mapping[str, str]
    token: str = ""
    path: str = "/"


class Access:
    """``token``: that is in the address which the user was shown. ``port``: None on a unix socket.

    ``once``: a token of the same worth, for one entry: other users can read it in the arguments of the browser.
    ``metrics``: a token for the metrics alone; empty: none.
    """

    def __init__(self, token: str, port: int | None, once: str = "", metrics: str = "") -> None:
        self.token, self._port, self._once, self._metrics = token, port, once, metrics
        self.cookie = COOKIE if port is None else f"{COOKIE}-{port}"

    def verdict(self, asked: Asked) -> Verdict:
        """Return whether a request is allowed. "enter": it is, and its cookie is to be set."""
        if not self._is_ours(asked.headers.get("host", "")):
            return "other host"
        acts = asked.method not in ("GET", "HEAD")
        if not acts and (self._fits(asked.token) or self._enters_once(asked.token)):
            return "enter"
        if not self._fits(asked.cookies.get(self.cookie, "")):
            return "allowed" if not acts and self._scrapes(asked) else "no token"
        if asked.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return "other site"
        if acts and not self._same_origin(asked.headers):
            return "other site"
        return "allowed"

    def _is_ours(self, host: str) -> bool:
        """Return whether the browser looks for this server by a name of this computer.

        A name of a stranger's that leads to 127.0.0.1 (DNS rebinding) makes the stranger's page one of the same origin.
        """
        said = _HOST.fullmatch(host.lower())
        if said is None or said[1] not in NAMES:
            return False
        return self._port is None or said[2] == str(self._port)

    def _same_origin(self, headers: Mapping[str, str]) -> bool:
        origin = urlsplit(headers.get("origin", ""))
        return origin.scheme == "http" and origin.netloc.lower() == headers.get("host", "").lower()

    def _scrapes(self, asked: Asked) -> bool:
        """Return whether a program asks for the metrics, with a token in a header which no browser adds by itself."""
        scheme, _, said = asked.headers.get("authorization", "").partition(" ")
        fits = self._fits(said.strip()) or (self._metrics != "" and _same(said.strip(), self._metrics))
        return asked.path == METRICS and scheme.lower() == "bearer" and fits

    def _fits(self, said: str) -> bool:
        return said != "" and _same(said, self.token)

    def _enters_once(self, said: str) -> bool:
        if not self._once or not _same(said, self._once):
            return False
        self._once = ""
        return True


def _same(said: str, token: str) -> bool:
    return hmac.compare_digest(said.encode(errors="replace"), token.encode())
