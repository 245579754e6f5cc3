"""A program that is nothing but one run, as `outrider run` is: the record has its exit code, and may be made by it."""

from __future__ import annotations

from collections.abc import Callable

from ...lazy_dataclass import dataclass
from .files import RecordFiles


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """``exit_code``: of the program, when its pool ends with an error. ``files``: the record, where it has made it."""

    exit_code: Callable[[BaseException], int]
    files: RecordFiles | None = None
