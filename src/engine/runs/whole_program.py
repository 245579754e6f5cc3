"""A process whose only job is one run (`outrider run`): its exit code becomes the exit code in the run's record."""

from __future__ import annotations

from collections.abc import Callable

from ...lazy_dataclass import dataclass
from .files import RecordFiles


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """The process of one run.

    ``exit_code``: returns the exit code for the pool's error. ``files``: the record it created.
    """

    exit_code: Callable[[BaseException], int]
    files: RecordFiles | None = None
