"""The process of a rank that runs a script as ``__main__``, or a command.

`runpy` runs a script in the rank's own, new process: `checkpoint`, `should_stop` and other functions for tasks work in
it, and the script's exception is available, which distinguishes a failed rank from ranks that lost it as a peer. A
command runs in a child process.
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
from ..api.errors import TaskError
from ..api.language import Language, is_own, reword, speaking
from ..node import rank_signals
from ..node.context import current

OF_RANKS = Language("options")
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells, POSIX.1-2017, 2.8.2


class ProgramFailed(TaskError):
    """The rank's program ended with an exit code other than 0. ``code``: as in a shell, 128 + n for signal n."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.args = message, code  # the arguments for unpickling
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a rank finds its program.

    ``folder``: the folder on this computer, for ranks that run here; empty: the program needs no files. ``root``: for
    ranks on other computers, the folder's name among the included files; empty for files without a folder.
    """

    folder: str
    root: str | None = None

    def enter(self) -> Path:
        """Make relative paths work as on the client, and return the folder."""
        if self.root is None:
            if self.folder:
                os.chdir(self.folder)
            return Path(self.folder)
        for entry in os.environ.get("OUTRIDER_PATH", "").split(os.pathsep):
            folder = Path(entry) / self.root
            if entry and folder.is_dir():
                if self.root:
                    _link(folder)
                return folder
        raise FileNotFoundError(f"{self.root or 'the script'} is not among the files that the image has brought here")


def _link(folder: Path) -> None:
    """Link the folder's files into the work folder, where the program can read them.

    New files do not go into the folder.
    """
    for each in folder.iterdir():
        with suppress(FileExistsError):  # another rank of the node has made the link
            Path(each.name).symlink_to(each)


def run_script(place: Place, script: str, *arguments: str) -> None:
    """Run a script as ``python script arguments`` would.

    Raises:
        ProgramFailed: the script failed. Its traceback is printed.
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
        if is_own(error) and not _opens_pools():
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
        ProgramFailed: the command could not be started, or failed.
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
    """End this process by SIGTERM if the program ended because of a preemption notice, whatever its exit code is.

    The program's work is not finished then, and the ranks run again elsewhere.
    """
    if rank_signals.was_notified(pid):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _ended(code: int) -> tuple[str, int]:
    if code > 0:
        return f"it ended with exit code {code}", code
    return f"it was killed by signal {-code}", 128 - code


def _opens_pools() -> bool:
    """Return whether the script opens pools itself. Errors about their options must then name them as in Python."""
    return f"{__name__.partition('.scripts.')[0]}.pool" in sys.modules


def _status(code: object) -> int:
    """Return Python's exit status for ``sys.exit(code)``."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr, flush=True)
    return 1


def _note_failure() -> None:
    """Record the time of the failure. The rest of the ending may take long, and other ranks then fail, too."""
    if (task := current()) is not None:
        task.raised_ns = perf_counter_ns()


def _of_script(trace: TracebackType | None, path: str) -> TracebackType | None:
    """Return the traceback from the script's first frame on."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


def _finish() -> None:
    """Wait for threads and run ``atexit`` functions, as at Python's exit, because the process will end without
    these.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the stream is closed, or the script has replaced it
            stream.flush()
