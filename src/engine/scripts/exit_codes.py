"""The exit code of `outrider run`, from the end of its broadcast. Pure."""

from __future__ import annotations

from ..api.errors import BroadcastFailed, RunStopped, SpecError, TaskKilled, TaskTimeout
from .program import ProgramFailed

OPTIONS = 2  # a mistake in the options, a file or a header: nothing was started
OUTRIDER = 125  # no rank failed: machines did not come, were lost for good, or could not be prepared
TIMEOUT = 124  # as of timeout(1)
INTERRUPTED = 130  # Ctrl-C
STOPPED = 143  # `outrider stop`, as if by SIGTERM
OUT_OF_MEMORY = 137  # 128 + SIGKILL, which the kernel sends


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ended the run: that of the rank that failed first, if it has one."""
    match error:
        case BroadcastFailed():
            return _of_rank(error.first.error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case SystemExit(code=int(code)):  # of a signal
            return code
        case RunStopped():
            return STOPPED
        case SpecError():
            return OPTIONS
        case _:
            return OUTRIDER


def _of_rank(error: Exception | None) -> int:
    match error:
        case ProgramFailed():
            return error.code
        case TaskKilled(out_of_memory=True):
            return OUT_OF_MEMORY
        case TaskKilled(exit_code=int(code)):
            return code or 1  # it ended its process early: a failure even with status 0
        case TaskKilled(signal=int(number)):
            return 128 + number
        case TaskTimeout():
            return TIMEOUT
        case _:
            return OUTRIDER
