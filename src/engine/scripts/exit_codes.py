"""The exit code of `outrider run`, computed from the end of its broadcast. No I/O."""

from __future__ import annotations

from ..api.errors import BroadcastFailed, RunStopped, SpecError, TaskKilled, TaskTimeout
from .program import ProgramFailed

OPTIONS = 2  # an error in the options, a file or a header; nothing was started
OUTRIDER = 125  # no rank failed: machines did not start, were lost for good, or could not be prepared
TIMEOUT = 124  # the exit code of timeout(1)
INTERRUPTED = 130  # Ctrl-C
STOPPED = 143  # `outrider stop`; the exit code after a SIGTERM
OUT_OF_MEMORY = 137  # 128 + SIGKILL, the signal by which the kernel ends a process without memory


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ended the run: that of the rank that failed first, if there is one."""
    match error:
        case BroadcastFailed():
            return _of_rank(error.first.error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case SystemExit(code=int(code)):  # exit by a signal
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
            return code or 1  # the rank ended its process too early, which is a failure even with status 0
        case TaskKilled(signal=int(number)):
            return 128 + number
        case TaskTimeout():
            return TIMEOUT
        case _:
            return OUTRIDER
