"""The pytest plugin: the ``chaos`` fixture, ``@pytest.mark.preempt``, and reports. Other modules load when used."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .check import Disturbance
    from .options import Chaos
    from .report import Report

MARK = (
    "preempt(rank=0, *, at_step, notice=None, fault=None): the test's `chaos` takes that rank's machine when its task "
    "has made so many steps: at once, or after so many seconds of notice; or does what `fault` says."
)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("outrider")
    group.addoption(
        "--outrider-report", metavar="DIR", help="where tests with chaos leave their timelines (HTML, JSON, PNG)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARK)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("preempt") and "chaos" not in getattr(item, "fixturenames", ()):
        raise pytest.UsageError(f"{item.nodeid}: @pytest.mark.preempt is for tests that use the `chaos` fixture")


@pytest.fixture
def chaos(
    request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[Disturbance]:
    """Return a `Disturbance`.

    ``chaos.check(f(), nodes=4)`` compares a run of ``f`` with faults to a run without; ``chaos.pool(nodes=4)`` returns
    a pool with faults.
    """
    from .check import Disturbance

    disturbance = Disturbance(plan_of(request.node), tmp_path / "checkpoints")
    yield disturbance
    folder = request.config.getoption("--outrider-report")
    for number, report in enumerate(disturbance.reports):
        for name, value in report.properties():
            record_property(name, value)
        if folder:
            name = re.sub(r"[^\w.-]+", "-", request.node.nodeid).strip("-") + (f"-{number}" if number else "")
            record_property("outrider.report", str(_written(report, Path(folder) / name)))


def plan_of(node: Any) -> Chaos | None:
    """Return the plan of a test's `preempt` marks, nearest mark first; return None if the test has no such mark.

    Raises:
        pytest.UsageError: a mark's arguments are not valid.
    """
    from ...engine.api.checks import check_known
    from ...engine.api.errors import SpecError
    from .options import Chaos

    marks = list(node.iter_markers("preempt"))
    try:
        for mark in marks:
            check_known("the mark", mark.kwargs, _OPTIONS)
            if "at_step" not in mark.kwargs:
                raise SpecError("it needs the step, as in @pytest.mark.preempt(rank=0, at_step=20)")
        return Chaos(None, faults=[_fault(*mark.args, **mark.kwargs) for mark in marks]) if marks else None
    except (SpecError, TypeError) as error:
        raise pytest.UsageError(f"{node.nodeid}: @pytest.mark.preempt: {error}") from error


_OPTIONS = ("rank", "at_step", "notice", "fault")


def _fault(rank: int | None = 0, *, at_step: int, notice: float | None = None, fault: Any = None) -> Any:
    from dataclasses import replace

    from ...engine.api.errors import SpecError
    from .faults import Fault, Kill, Preempt

    if fault is None:
        fault = Kill() if notice is None else Preempt(notice)
    elif notice is not None:
        raise SpecError("notice is for a machine that is taken: leave it out, or fault")
    if not isinstance(fault, Fault):
        raise SpecError(f"fault takes one such as Freeze(20), not {fault!r}")
    return replace(fault, rank=rank, at_step=at_step)


def _written(report: Report, stem: Path) -> Path:
    from ...engine.api.errors import SpecError

    page = report.write(stem.with_name(f"{stem.name}.html"))
    report.write(stem.with_name(f"{stem.name}.json"))
    try:
        report.write(stem.with_name(f"{stem.name}.png"))
    except SpecError:  # matplotlib is not installed
        pass
    return page
