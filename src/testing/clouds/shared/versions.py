"""Values with their history, for test clouds whose answers are slightly outdated, as those of EC2 may be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Versions(Generic[T]):
    """Immutable values by id, with their history. None: the value does not exist yet, or no longer exists."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._past: dict[str, list[tuple[float, T | None]]] = {}

    def put(self, name: str, value: T | None) -> None:
        self._past.setdefault(name, []).append((self._now(), value))

    def get(self, name: str, ago: float = 0.0) -> T | None:
        """Return the value that existed ``ago`` seconds ago; None: there was none."""
        then = self._now() - ago
        for at, value in reversed(self._past.get(name, ())):
            if ago <= 0.0 or at <= then:
                return value
        return None

    def all(self, ago: float = 0.0) -> list[T]:
        """Return all values that existed ``ago`` seconds ago, in the order of their first appearance."""
        return [value for name in self._past if (value := self.get(name, ago)) is not None]
