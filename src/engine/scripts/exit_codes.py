"""The exit code of `outrider run`, computed from the error that ended its broadcast. No I/O."""

from __future__ import annotations

from ..api.errors import BroadcastFailed, RunStopped, SpecError, TaskKilled, TaskTimeout
from .program import ProgramFailed

OPTIONS = 2  # an error in the options, a configuration file or a script's header: nothing was started
OUTRIDER = 125  # no rank failed, but machines did not start, were lost for good, or could not be prepared
TIMEOUT = 124  # the exit code of the command timeout(1)
INTERRUPTED = 130  # the user pressed Ctrl-C
STOPPED = 143  # `outrider stop`; the same exit code as after SIGTERM
OUT_OF_MEMORY = 137  # 128 + SIGKILL: the kernel sends that signal to a process for which there is no memory


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error that ended the run. If a rank failed, it is that of the first failed rank."""
    match error:
        case BroadcastFailed():
            return _of_rank(error.first.error)
        case KeyboardInterrupt():
            return INTERRUPTED
        case SystemExit(code=int(code)):  # raised by a handler of a signal
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
            # an exit code of 0 is a failure too, as the rank ended its process before its program returned
            return code or 1
        case TaskKilled(signal=int(number)):
            return 128 + number
        case TaskTimeout():
            return TIMEOUT
        case _:
            return OUTRIDER
