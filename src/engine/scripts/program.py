"""The processes of a script's ranks: the environment variables of a rank, and the program that runs in it.

`ScriptRanks` starts the processes, and sets the variables of ``torchrun`` that other broadcasts do not set. `runpy`
runs a script in the new process of its rank. So functions for tasks such as `checkpoint` and `should_stop` work in the
script. The process also gets the script's exception, which shows whether this rank failed first or only lost its
connection to another rank. A command runs in a child process.
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
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api.errors import TaskError
from ..api.language import Language, is_own, reword, speaking
from ..api.plugin import Plugin
from ..node import rank_signals
from ..node.context import current
from ..plugins.rank_layout import Ranks, interface, own_address, ranks_on, unless_set
from ..runtime.instance_info import sharing

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo


@dataclass(frozen=True)
class ScriptRanks(Plugin):
    """The plugin for the ranks of a script: ``ranks`` new processes on each node.

    A script sets up communication itself.

    ``max_restarts``: passed to the script in an environment variable.
    """

    ranks: Ranks = "auto"
    max_restarts: int = 0

    name: ClassVar[str] = "script"
    collective: ClassVar[bool] = True
    fresh_process: ClassVar[bool] = True

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return ranks_on(facts, self.ranks)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        # See torch.distributed.run, "Environment Variables". TORCHELASTIC_USE_AGENT_STORE is not set, so that rank 0
        # creates the store.
        variables = {
            "GROUP_WORLD_SIZE": str(info.total_nodes),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(info.rank),
            "ROLE_WORLD_SIZE": str(info.world_size),
            "TORCHELASTIC_RESTART_COUNT": str(max(0, info.generation - 1)),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_RUN_ID": info.pool,
        }
        # without this variable, gloo looks up the address of this host's name, which may be wrong
        if (name := interface(own_address(info))) is not None:
            variables |= unless_set({"GLOO_SOCKET_IFNAME": name})
        if sharing(info) > 1:  # ranks share the node: as under torchrun, do not let each of them use every core
            variables |= unless_set({"OMP_NUM_THREADS": "1"})
        return variables


OF_RANKS = Language("options")
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # exit codes of shells for these failures (POSIX.1-2017, 2.8.2)


class ProgramFailed(TaskError):
    """The error for a rank's program that ended with an exit code other than 0.

    ``code``: the exit code, as shells report it: 128 + n for signal n.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.args = message, code  # unpickling calls the class with these arguments
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True, slots=True)
class Place:
    """The place where a rank finds its program.

    ``folder``: the folder, for ranks on this computer; "": the program needs no files. ``root``: for ranks on other
    computers, the name of the program's folder among the files that the image (the setup of the nodes' software)
    copies there; "": the files have no folder; None: ranks run on this computer.
    """

    folder: str
    root: str | None = None

    def enter(self) -> Path:
        """Prepare the current folder so that the program's relative paths work as on the client.

        Return the program's folder.
        """
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
    """Link the files of ``folder`` into the rank's work folder, where relative paths find them.

    Files that the program creates are then in the work folder, not in ``folder``.
    """
    for each in folder.iterdir():
        with suppress(FileExistsError):  # another rank of the node has already made this link
            Path(each.name).symlink_to(each)


def run_script(place: Place, script: str, *arguments: str) -> None:
    """Run a script as ``python script arguments`` would.

    Raises:
        ProgramFailed: The script failed. Its traceback was printed.
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
        ProgramFailed: The command could not be started, or failed.
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
    """End this process by SIGTERM if a preemption notice (the cloud takes back a machine) has ended the program.

    The exit code of the program does not count then: its work is not finished, and the ranks run again elsewhere.
    """
    if rank_signals.was_notified(pid):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)


def _ended(code: int) -> tuple[str, int]:
    if code > 0:
        return f"it ended with exit code {code}", code
    return f"it was killed by signal {-code}", 128 - code


def _opens_pools() -> bool:
    """Return whether the script opens pools itself. If so, errors must call options by their names in Python."""
    return f"{__name__.partition('.scripts.')[0]}.pool" in sys.modules


def _status(code: object) -> int:
    """Return the exit status with which Python ends after ``sys.exit(code)``."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr, flush=True)
    return 1


def _note_failure() -> None:
    """Record the time at which this rank failed, before the process ends.

    The end may take long, and other ranks may fail meanwhile. The time shows which rank failed first.
    """
    if (task := current()) is not None:
        task.raised_ns = perf_counter_ns()


def _of_script(trace: TracebackType | None, path: str) -> TracebackType | None:
    """Remove the frames before the script's first frame from a traceback."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


def _finish() -> None:
    """Wait for threads, run ``atexit`` functions and flush the standard streams, as Python does at its exit.

    This process will end in another way, without these steps.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the script has closed or replaced the stream
            stream.flush()
