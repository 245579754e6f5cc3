"""A process whose only job is one run (`outrider run`). Its exit code becomes the exit code in the run's record."""

from __future__ import annotations

from collections.abc import Callable

from ...lazy_dataclass import dataclass
from .files import RecordFiles


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """The description of a process whose only job is one run.

    ``exit_code``: returns the process's exit code for an error of the pool. ``files``: the record that it has created.
    """

    exit_code: Callable[[BaseException], int]
    files: RecordFiles | None = None
