"""Chaos as a pool sees it: a plan of faults, and their injection. `testing.fault_injection` implements it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import os

    from ...actors import events as ev


class ChaosPlan:
    """The base class of `outrider.testing.Chaos`, whose docstring explains the attributes."""

    __slots__ = ()

    mtbf: float | None
    seed: int
    faults: tuple[Any, ...]
    rank: int | None
    most: int

    @property
    def at_steps(self) -> tuple[Any, ...]:
        """The faults with ``at_step``."""
        raise NotImplementedError

    def _injection(self, core: Any) -> Injection:
        """Return the injection of these faults into the pool ``core``, an `OpenPool`."""
        raise NotImplementedError


class Injection(Protocol):
    """The injection of faults into one pool: `begin` at any time, `start` when the pool is ready, then `end`."""

    @property
    def report(self) -> ChaosReport: ...

    async def begin(self) -> None: ...

    def start(self) -> None: ...

    async def end(self) -> None: ...

    async def collect(self) -> None:
        """Add the last events of the pool to the report, after the pool has ended."""


class ChaosReport(Protocol):
    """A report of injected faults: an `outrider.testing.Report`, whose docstring explains the attributes."""

    chaos: Any
    began_at: float | None
    ended_at: float | None

    @property
    def initial_nodes(self) -> Sequence[Any]: ...

    @property
    def strikes(self) -> Sequence[Any]: ...

    @property
    def events(self) -> Sequence[ev.Event]: ...

    @property
    def step_counts(self) -> Sequence[Any]: ...

    @property
    def losses(self) -> list[ev.NodeLost]: ...

    @property
    def generations(self) -> int: ...

    @property
    def seen_s(self) -> list[float]: ...

    @property
    def recoveries_s(self) -> list[float]: ...

    @property
    def working_s(self) -> list[float]: ...

    def of(self, *kinds: type[Any]) -> list[Any]:
        """Return the recorded events of the types ``kinds``."""
        ...

    def summary(self) -> str:
        """Return the statistics as one line of text for the user."""
        ...

    def properties(self) -> list[tuple[str, object]]:
        """Return the statistics as (name, value) pairs for the properties of a test in a JUnit report."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return the whole report as a dict that can be written as JSON."""
        ...

    def write(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to ``path``, a ``.json``, ``.html``, ``.png`` or ``.svg`` file, and return the path."""
        ...
