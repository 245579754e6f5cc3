"""Check that a function returns the same result with faults as without: run it once undisturbed, once with faults."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from math import inf, isclose, isnan
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...engine.api.errors import SpecError
from .options import Chaos
from .plan import Planned, stepped, timed
from .report import Report, missed

if TYPE_CHECKING:
    from ...engine.api.calls import Call
    from ...engine.pool import Pool

R = TypeVar("R")


class Disturbance:
    """The value of the ``chaos`` fixture of pytest.

    Args:
        plan: The faults of the test's `preempt` marks. None: each use passes its own plan.
        directory: The folder for checkpoints.
    """

    def __init__(self, plan: Chaos | None, directory: Path) -> None:
        self._plan, self._directory = plan, directory
        self._pools: list[Pool] = []

    def pool(self, plan: Chaos | None = None, /, **options: Any) -> Pool:
        """Return a pool that injects the faults of ``plan``. Open the pool with ``with`` or ``async with``.

        Args:
            plan: The faults. None: the faults of the test's marks.
            options: Options of `Pool`.

        Raises:
            SpecError: Neither a mark nor this call specifies faults.
        """
        from ...engine.pool import Pool

        chosen = plan or self._plan
        if chosen is None:
            raise SpecError("The chaos fixture has no faults: mark the test, @pytest.mark.preempt(rank=0, at_step=20).")
        defaults: dict[str, Any] = {
            "console": "silent",
            "checkpoints": self._directory / f"disturbed-{len(self._pools)}",
        }
        pool = Pool(chaos=chosen, **(defaults | options))
        self._pools.append(pool)
        return pool

    def check(
        self, call: Call[R], /, plan: Chaos | None = None, *, nodes: Any = 2, rtol: float = 0.0, **options: Any
    ) -> list[R]:
        """Broadcast a call on an undisturbed pool and on a pool with faults, and compare the results.

        Args:
            call: A pending call.
            plan: The faults. None: the faults of the test's marks.
            nodes: The ``nodes`` of both pools.
            rtol: The allowed relative difference between floats; other values must be equal.
            options: Options of `Pool`. Each of the two pools has its own ``checkpoints``.

        Returns:
            The results of the pool with faults, by rank.

        Raises:
            AssertionError: The results differ, a fault with ``at_step`` was not injected, or no fault was injected.
        """
        from ...engine.pool import Pool

        undisturbed: dict[str, Any] = {
            "console": "silent",
            "checkpoints": self._directory / f"undisturbed-{len(self._pools)}",
        }
        with Pool(nodes=nodes, **(undisturbed | options)) as calm:
            expected = calm.broadcast(call)
        pool = self.pool(plan, nodes=nodes, **options)
        with pool as disturbed:
            began = time.monotonic()
            got = disturbed.broadcast(call)
            took_s = time.monotonic() - began
        report = cast("Report", pool.chaos)
        assert report.chaos is not None
        if late := missed(stepped(report.chaos), report.strikes):
            raise AssertionError(_not_injected(late, report))
        if not report.strikes:
            raise AssertionError(_none_injected(cast("Chaos", report.chaos), took_s))
        for rank, (one, other) in enumerate(zip(expected, got, strict=True)):
            if (story := difference(one, other, rtol)) is not None:
                raise AssertionError(f"rank {rank} gives another answer: {story} ({report.summary()})")
        return got

    @property
    def reports(self) -> list[Report]:
        """The reports of all pools that were opened, in the order in which `pool` returned the pools."""
        return [cast("Report", pool.chaos) for pool in self._pools if pool._injector is not None]


def _not_injected(late: Sequence[Planned], report: Report) -> str:
    faults = ", ".join(str(planned.fault) for planned in late)
    counts = ", ".join(f"rank {each.rank} made {each.steps}" for each in report.step_counts) or "no task counted any"
    return (
        f"{faults} did not happen: of its steps, {counts}. A step is a call of should_stop(), of ckpt.save(), or of "
        "outrider.testing.step()."
    )


def _none_injected(chaos: Chaos, took_s: float) -> str:
    first = next(timed(chaos))
    return (
        f"no fault was injected: the call took {took_s:.1f} s, and the first fault was due after {first.at_s:.1f} s. "
        "Give it more to do, or a smaller mtbf."
    )


def difference(expected: Any, got: Any, rtol: float = 0.0, where: str = "") -> str | None:
    """Describe where two results differ; return None if they are equal."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        if expected.keys() == got.keys():
            return _first(difference(expected[key], got[key], rtol, f"{where}[{key!r}]") for key in expected)
    elif _is_sequence(expected) and _is_sequence(got):
        if len(expected) == len(got):
            pairs = enumerate(zip(expected, got, strict=True))
            return _first(difference(one, other, rtol, f"{where}[{place}]") for place, (one, other) in pairs)
    elif is_dataclass(expected) and type(expected) is type(got):
        names = [each.name for each in fields(expected)]
        return _first(difference(getattr(expected, n), getattr(got, n), rtol, f"{where}.{n}") for n in names)
    elif _same(expected, got, rtol):
        return None
    return f"{where + ': ' if where else ''}{_shown(got)}, undisturbed {_shown(expected)}"


def _same(expected: Any, got: Any, rtol: float) -> bool:
    if hasattr(expected, "shape") and hasattr(got, "shape"):  # numpy, torch, jax
        return tuple(expected.shape) == tuple(got.shape) and _all_same(expected, got, rtol)
    # integers are compared exactly: as floats, two different large integers could be equal
    if isinstance(expected, Integral) and isinstance(got, Integral):
        return bool(expected == got)
    if isinstance(expected, Real) and isinstance(got, Real):
        with suppress(OverflowError):  # the values are no floats but include an integer too large for a float
            return expected == got or (isnan(expected) and isnan(got)) or isclose(expected, got, rel_tol=rtol)
    return bool(expected == got)


def _all_same(expected: Any, got: Any, rtol: float) -> bool:
    differ = (expected != got) & ((expected == expected) | (got == got))  # noqa: PLR0124 - nan counts as equal to nan
    if not bool(differ.any()):
        return True
    if not rtol or not _is_inexact(expected) or not _is_inexact(got):
        return False
    one, other = expected[differ], got[differ]
    # excludes nan and infinity: the relative tolerance of an infinite value would allow any difference
    finite = (abs(one) < inf) & (abs(other) < inf)
    return bool(finite.all()) and bool((abs(one - other) <= rtol * abs(one)).all())


def _is_inexact(array: Any) -> bool:
    """Return whether the array's dtype is a float or complex type, judged by its name, such as "torch.bfloat16"."""
    return any(name in str(array.dtype) for name in ("float", "complex"))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _first(stories: Any) -> str | None:
    return next((story for story in stories if story is not None), None)


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."
