"""A cloud's published schema, in a file beside the test cloud: operations with their parameters and responses."""

from __future__ import annotations

import ipaddress
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from .extract import Extract
from .front import Reply, Request
from .schema import Invalid


class Published:
    """An extract of a cloud's published schema. Each of its ``operations`` has a ``method`` and a ``path``.

    Further keys of an operation: ``asks`` names the schema of the request's body (without this key, requests have no
    body); ``answers`` names the schema of responses with status 200; ``query`` has the allowed names in the query. The
    key ``refusal`` of the whole file names the schema of all other responses.
    """

    def __init__(self, file: Path) -> None:
        self._extract = Extract(file)

    @property
    def operations(self) -> Mapping[str, Any]:
        return self._extract.operations

    def action(self, request: Request) -> str:
        """Return the name of the requested operation; empty: there is no such operation."""
        return self._extract.action(request.method, request.path)

    def check_request(self, request: Request, action: str) -> None:
        """Raise Invalid for a request that does not fit the cloud's published schema."""
        if not action:
            raise Invalid(f"{request.method} {request.path}", "there is no such operation")
        operation = self.operations[action]
        unknown = request.query.keys() - {*operation.get("query", ())}
        if unknown:
            raise Invalid(action, f"it takes no {', '.join(sorted(unknown))} in its query")
        if "asks" in operation:
            self._extract.schemas.check(operation["asks"], request.json())
        elif request.body:
            raise Invalid(action, "it takes no body")

    def check_answer(self, action: str, reply: Reply) -> None:
        """Raise Invalid for a response that does not fit the cloud's published schema."""
        refusal = self._extract.document["refusal"]
        schema = self.operations[action]["answers"] if reply.status == 200 else refusal
        self._extract.schemas.check(schema, reply.body)


class Limit:
    """A rate limit: at most ``most`` requests within ``seconds``."""

    def __init__(self, most: int, seconds: float) -> None:
        self._seconds = seconds
        self._at: deque[float] = deque(maxlen=most)

    def allows(self, now: float) -> bool:
        if len(self._at) == self._at.maxlen and now - self._at[0] < self._seconds:
            return False
        self._at.append(now)
        return True


def addresses(network: str) -> Iterator[str]:
    """Yield the addresses of a network, again and again without an end."""
    net = ipaddress.ip_network(network)
    return (str(net[number % (net.num_addresses - 16) + 10]) for number in count())
