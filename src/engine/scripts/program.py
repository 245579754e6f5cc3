"""Run a script as ``__main__``, or a command, as one rank of a broadcast. The processes of ranks call this.

A script is run by `runpy` in the rank's own process, a fresh one: `checkpoint`, `should_stop` and what else tasks ask
work in it, and its exception is known here, which tells a rank that failed from those that lost it as their peer. A
command is a child process.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType

from ...lazy_dataclass import dataclass
from ..api.errors import OutriderError, TaskError
from ..api.language import Language, reword, speaking
from ..node import rank_signals
from ..node.context import current

OF_RANKS = Language("options")
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells, POSIX.1-2017, 2.8.2


class ProgramFailed(TaskError):
    """The rank's program ended with an exit code other than 0. ``code``: as a shell has it, 128 + n for a signal."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.args = message, code  # what it is pickled by
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a rank finds its program.

    ``folder``: on this computer, where the ranks work as well; "": nothing is to be found. ``root``: on others, the
    name that the folder has among the included files; "" for files without one.
    """

    folder: str
    root: str | None = None

    def enter(self) -> Path:
        """Make relative paths mean what they mean here, and return the folder."""
        if self.root is None:
            if self.folder:
                os.chdir(self.folder)
            return Path(self.folder)
        for entry in os.environ.get("OUTRIDER_PATH", "").split(os.pathsep):
            found = Path(entry) / self.root
            if entry and found.is_dir():
                if self.root:
                    _link(found)
                return found
        raise FileNotFoundError(f"{self.root or 'the script'} is not among the files that the image has brought here")


def _link(folder: Path) -> None:
    """Link what is in the folder into the work folder: it is read there, and new files do not come among it."""
    for each in folder.iterdir():
        with suppress(FileExistsError):  # another rank of the node was here before
            Path(each.name).symlink_to(each)


def run_script(place: Place, script: str, *arguments: str) -> None:
    """Run a script as ``python script arguments`` would.

    Raises:
        ProgramFailed: it has not ended well. Its traceback is printed.
    """
    path = place.enter() / script
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    rank_signals.register(os.getpid())
    try:
        with speaking(OF_RANKS):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as end:
        if (code := _status(end.code)) != 0:
            _note_failure()
            raise ProgramFailed(f"it ended with exit code {code}", code) from None
    except BaseException as error:  # noqa: BLE001  whatever the script raises
        _note_failure()
        if isinstance(error, OutriderError) and not _opens_pools():
            reword(error, OF_RANKS)
        trace = _of_script(error.__traceback__, str(path))
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        message = "".join(traceback.format_exception_only(error)).strip().rpartition("\n")[2]
        raise ProgramFailed(message, 130 if isinstance(error, KeyboardInterrupt) else 1) from None
    finally:
        _finish()
        _end_if_notified(os.getpid())


def run_command(place: Place, *words: str) -> None:
    """Run a command in a child process, and wait for its end.

    Raises:
        ProgramFailed: it could not be started, or has not ended well.
    """
    place.enter()
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    try:
        with subprocess.Popen(words, env={"PYTHONUNBUFFERED": "1", **os.environ, "PATH": path}) as process:  # noqa: S603
            rank_signals.register(process.pid)
            code = process.wait()
        _end_if_notified(process.pid)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        print(f"outrider: {words[0]} cannot be run: {error.strerror}", file=sys.stderr, flush=True)
        raise ProgramFailed(f"{words[0]} cannot be run: {error.strerror}", code) from None
    if code:
        raise ProgramFailed(*_ended(code))


def _end_if_notified(pid: int) -> None:
    """End this process by SIGTERM if the program ended because its machine will be taken, whatever its exit code: the
    work is not done, and the ranks run again elsewhere.
    """
    if rank_signals.was_notified(pid):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _ended(code: int) -> tuple[str, int]:
    if code > 0:
        return f"it ended with exit code {code}", code
    return f"it was killed by signal {-code}", 128 - code


def _opens_pools() -> bool:
    """Return whether the script has pools of its own: what is wrong with one is to be mended in Python."""
    return f"{__name__.partition('.scripts.')[0]}.pool" in sys.modules


def _status(code: object) -> int:
    """Return the exit status of ``sys.exit(code)``, as Python has it."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr, flush=True)
    return 1


def _note_failure() -> None:
    """Note the time: what follows may take long, and other ranks lose this one by it."""
    if (task := current()) is not None:
        task.raised_ns = perf_counter_ns()


def _of_script(trace: TracebackType | None, path: str) -> TracebackType | None:
    """Return the traceback from the script's first frame on: as if nobody had called it."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


def _finish() -> None:
    """Wait for threads and run ``atexit`` functions, as a Python that ends: the process is ended without that."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or replaced by the script
            stream.flush()
