"""The operations of the test cloud. A call returns its operation at once; the operation ends later, and a client can
find it by its requestId.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..shared.clock import Clock


class Operations:
    """All operations. ``seconds``: the duration of an operation."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self._all: dict[str, tuple[float, dict[str, Any]]] = {}  # name -> (time at which the operation ends, operation)
        self._by_request: dict[str, str] = {}  # requestId -> name of the operation

    def begin(self, kind: str, request_id: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        name = f"operation-{len(self._all) + 1}"
        started = {"kind": "compute#operation", "name": name, "operationType": kind, "insertTime": self.date(0.0)}
        if request_id:
            self._by_request[request_id] = name
            started["clientOperationId"] = request_id
        self._all[name] = self._clock.now() + self._seconds, {**started, "user": "tester", **fields}
        operation = self.get(name)
        assert operation is not None, "it was just put"
        return operation

    def of_request(self, request_id: str) -> dict[str, Any] | None:
        """Return the operation of an earlier request with this id; None: there was none."""
        return self.get(self._by_request[request_id]) if request_id in self._by_request else None

    def get(self, name: str) -> dict[str, Any] | None:
        if name not in self._all:
            return None
        done_at, fields = self._all[name]
        if self._clock.now() >= done_at:
            return {**fields, "status": "DONE"}
        hidden = {"error", "instancesBulkInsertOperationMetadata"}
        return {key: value for key, value in fields.items() if key not in hidden} | {"status": "RUNNING"}

    def of_zone(self, zone: str) -> list[dict[str, Any]]:
        operations = [
            self.get(name) for name, (_, fields) in self._all.items() if fields.get("zone", "").endswith(f"/{zone}")
        ]
        return [each for each in operations if each is not None]

    def date(self, seconds: float) -> str:
        """Return a time as RFC 3339: ``seconds`` seconds from now."""
        return self._clock.date(self._clock.now() + seconds).isoformat(timespec="milliseconds")
