"""The fork server: forks workers quickly and removes all processes of dead ones. It runs no user code and no threads.

The fork server is the parent of every worker and adopts the workers' orphans. Therefore it can kill a task's whole
process tree and confirm that it is gone: it reports a worker's death when no stray child is left, or with the names of
children that cannot be killed. Requests arrive over one SOCK_SEQPACKET socket; when that closes, the fork server ends
with all of its workers. Measured: the module and its imports take 40 ms, a fork 2 ms.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import msgpack

from . import context, limits, process
from .environ import drop_other_launchers
from .fork_orders import FORK, KILL, SETUP
from .holdings import Allotment
from .log_socket import VARIABLE, LogEnd
from .memory_watch import MemoryWatch
from .notice_page import NoticePage
from .stack_file import StackFile
from .template import IMPORT_S, Template
from .worker import ThreadWorker, Worker

_MESSAGE_BYTES = 256 * 1024
STRAYS_S = 2.0  # time for a dead worker's other processes to end
ENDS_S = 60.0  # time for a killed worker to end: the kernel frees eight GPUs, or terabytes of memory, slowly
# at least so many attempts to kill all children at its own end, as this process may be stopped until its time limit
END_TRIES = 20
_AGAIN_MS = 100  # interval between checks for a dead worker's remaining processes
_NAMED = 8  # unkillable processes that the report names


def serve(control: socket.socket, *keep: int) -> NoReturn:
    """Run a fork server in this process, and exit.

    All descriptors except 0 to 2, ``control`` and ``keep`` are closed.
    """
    try:
        ForkServer(control, keep).run()
    except BaseException:  # noqa: BLE001 - no caller: this may be a forked child
        traceback.print_exc()
    finally:
        os._exit(1)


class ForkServer:
    def __init__(self, control: socket.socket, keep: Sequence[int] = ()) -> None:
        process.close_all_but({0, 1, 2, control.fileno(), *keep})
        with suppress(PermissionError):  # this process already leads a group
            os.setsid()  # survive a kill of the executor server's process group, to remove the workers then
        process.adopt_orphans()
        self._pid = os.getpid()
        self._old_limits = limits.raise_descriptors()
        self._setup_error = ""  # why the notice page's descriptor, sent for all workers, was not received
        self._control = control
        self._setup: dict[str, Any] = {}
        self._settled = False
        self._workers: dict[int, int] = {}  # pid -> worker
        self._killed: dict[int, float] = {}  # pid -> time of the kill, of workers that have not ended yet
        self._dead: dict[int, tuple[int, float]] = {}  # worker -> (status, time of death), of deaths not reported yet
        self._strays: dict[int, float] = {}  # pid -> time since when it is known, of children that are not workers
        self._template: Template | None = None
        self._memory = MemoryWatch()
        self._held: dict[int, int] = {}  # worker -> memory in bytes for which it was killed
        self._waiting: dict[
            int, tuple[int, bool, Allotment, list[int]]
        ] = {}  # worker -> its fork request, kept until the template is ready
        self._import_deadline = 0.0  # end of the template's import time: until then, workers wait for the template
        self._ready = select.poll()
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # keeps the objects' pages unwritten, so that workers share them

    def run(self) -> NoReturn:
        self._ready.register(self._control, select.POLLIN)
        self._ready.register(self._woken, select.POLLIN)
        while True:
            for fd, _ in self._ready.poll(self._until_next_ms()):
                if fd == self._woken:
                    os.read(fd, 4096)
                elif fd == self._control.fileno():
                    self._on_order()
                elif self._template is not None:
                    self._on_template_readable(self._template)
            if self._importing is not None and time.monotonic() >= self._import_deadline:
                self._drop_template(self._importing)
                self._fork_waiting()
            self._kill_the_largest()
            self._reap()

    @property
    def _importing(self) -> Template | None:
        return None if self._template is None or self._template.ready else self._template

    def _until_next_ms(self) -> float | None:
        if self._dead:
            return _AGAIN_MS
        times = [since + ENDS_S for since in self._killed.values()]
        if (look_at := self._memory.due()) is not None:
            times.append(look_at)
        if self._importing is not None:
            times.append(self._import_deadline)
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def _on_order(self) -> None:
        try:
            data, fds = limits.receive(self._control, _MESSAGE_BYTES, 5)
        except ConnectionError:
            data, fds = b"", []
        if not data:
            self._end()
        order, *rest = msgpack.unpackb(data, use_list=False)
        if fds is None:
            if order == FORK:
                self._report_gone(rest[0], -1, limits.story())
            else:
                self._setup_error = limits.story()
            return
        if order == SETUP:
            self._setup = rest[0]
            context.set_notice_page(NoticePage(fds[0]))
            os.environ[context.NOTICE_PAGE] = f"/proc/{self._pid}/fd/{fds[0]}"
            process.shield(self._setup["signals"])
            if modules := [each for each in self._setup["preload"] if each not in sys.modules]:
                self._start_template(modules)
        elif order == FORK:
            worker, index, fresh, allotment = rest
            if self._importing is not None:
                self._waiting[worker] = index, fresh, Allotment(*allotment), fds
            else:
                self._fork(worker, index, fresh, Allotment(*allotment), fds)
        elif order == KILL:
            self._kill(rest[0])

    def _kill(self, worker: int) -> None:
        if (waiting := self._waiting.pop(worker, None)) is not None:
            for fd in waiting[-1]:
                os.close(fd)
            self._report_gone(worker, signal.SIGKILL, "")
        for pid in [pid for pid, each in self._workers.items() if each == worker]:
            self._killed.setdefault(pid, time.monotonic())
            process.kill_tree(pid)

    def _kill_the_largest(self) -> None:
        """Kill the workers whose process trees exceed their memory limit."""
        for pid, held_bytes in self._memory.look(time.monotonic()):
            if (worker := self._workers.get(pid)) is not None and pid not in self._killed:
                self._held[worker] = held_bytes
                self._kill(worker)

    def _fork(self, worker: int, index: int, fresh: bool, allotment: Allotment, fds: list[int]) -> None:
        try:
            if self._setup_error:
                raise OSError(self._setup_error)
            pid = self._forked(index, fresh, allotment, fds)
        except OSError as error:  # for example no memory, or too many processes
            self._report_gone(worker, -1, _why_not(error))
        else:
            self._workers[pid] = worker
            if allotment.memory_bytes:
                self._memory.add(pid, allotment.memory_bytes)
        finally:
            for fd in fds:
                os.close(fd)

    def _forked(self, index: int, fresh: bool, allotment: Allotment, fds: list[int]) -> int:
        if self._template is not None:
            try:
                return self._template.fork([index, fresh, allotment], fds)
            except BrokenPipeError:
                self._drop_template(self._template)
        pid = os.fork()
        if pid == 0:
            self._become(index, fresh, allotment, fds)
        return pid

    # --- the template -------------------------------------------------------------------------------------------------

    def _start_template(self, modules: Sequence[str]) -> None:
        """Start the template.

        Workers wait for it, because each of their tasks would otherwise import the same modules.
        """

        def settle_in() -> None:
            process.shield(self._setup["signals"])
            _settle_in(self._setup)
            self._settled = True

        try:
            self._template = Template(
                modules,
                lambda order, fds: self._become(order[0], order[1], Allotment(*order[2]), fds),
                settle_in=settle_in,
            )
        except OSError:  # workers are forked without a template
            return
        self._ready.register(self._template, select.POLLIN)
        self._import_deadline = time.monotonic() + IMPORT_S

    def _on_template_readable(self, template: Template) -> None:
        try:
            template.on_readable()
        except BrokenPipeError:
            self._drop_template(template)
        self._fork_waiting()

    def _fork_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for worker, order in waiting.items():
            self._fork(worker, *order)

    def _drop_template(self, template: Template) -> None:
        self._ready.unregister(template)
        template.close()
        self._template = None

    # --- workers ------------------------------------------------------------------------------------------------------

    def _become(self, index: int, fresh: bool, allotment: Allotment, fds: list[int]) -> NoReturn:
        """Turn the forked child into a worker: release the resources of the fork server, then serve."""
        try:
            process.begin_child(self._pid)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            process.shield(self._setup["signals"])
            os.setsid()
            process.adopt_orphans()
            pipe, stdout, stderr, stacks, *log = fds
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            process.close_all_but({0, 1, 2, pipe, stdout, stderr, stacks, *log})
            _draw_other_numbers()
            if not self._settled:
                _settle_in(self._setup)
            os.environ.update({**allotment.defaults, **os.environ, **allotment.settings})
            logged = LogEnd(log[0]) if log else None
            if logged is None:
                os.environ.pop(VARIABLE, None)  # inherited if the pool's client runs in a task of another pool
            else:
                os.environ[VARIABLE] = logged.path
            folder = Path(self._setup["cwd"])
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # created again if a task has removed the folder
            os.chdir(folder)
            limits.lower_descriptors(self._old_limits)
            several = self._setup["threads"] > 1 and not fresh
            context.set_notes(StackFile(stacks, locked=several))
            sock, outputs = socket.socket(fileno=pipe), {1: stdout, 2: stderr}
            if several:
                ThreadWorker(sock, index, self._setup, outputs).serve()
            Worker(sock, index, self._setup, outputs, fresh=fresh, logged=logged).serve()
        except BaseException:  # noqa: BLE001 - else the child would continue as a second fork server
            os.write(2, traceback.format_exc().encode(errors="replace"))  # bypasses any replacement of sys.stderr
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Report dead workers, after all orphans (children that are not workers) are gone.

        Some orphans survive SIGKILL because they belong to another user or hang in the kernel. The death of their
        worker is reported after `STRAYS_S`, and later deaths do not wait for these orphans. A worker itself may hang in
        the kernel, for example in a driver: its own code cannot run any more, and after `ENDS_S` it counts as dead.
        """
        now = time.monotonic()
        stuck = [pid for pid, since in self._killed.items() if since + ENDS_S <= now]
        for pid, status in (*_ended(), *((pid, signal.SIGKILL) for pid in stuck)):
            self._killed.pop(pid, None)
            self._memory.remove(pid)
            worker = self._workers.pop(pid, None)
            if worker is not None:
                self._dead[worker] = status, now
        strays = set(process.children(self._pid)) - self._workers.keys()
        if self._template is not None:
            strays.discard(self._template.pid)
        self._strays = {pid: self._strays.get(pid, now) for pid in strays}
        waited_for = [pid for pid, since in self._strays.items() if now < since + STRAYS_S]
        for stray in waited_for:
            process.kill_tree(stray)
        for worker, (status, died) in list(self._dead.items()):
            if not waited_for or died + STRAYS_S <= now:
                del self._dead[worker]
                left = [pid for pid, since in self._strays.items() if since >= died]
                self._report_gone(worker, status, _withstood(left), died)

    def _end(self) -> NoReturn:
        """End this process and all its children: the executor server has ended, or has closed the socket."""
        deadline, tries = time.monotonic() + 5, 0
        while (left := process.children(self._pid)) and (tries < END_TRIES or time.monotonic() < deadline):
            tries += 1
            for pid in left:
                process.kill_tree(pid)
            for _ in _ended():
                pass
            if select.select([self._woken], [], [], 0.05)[0]:
                os.read(self._woken, 4096)
        os._exit(0)

    def _report_gone(self, worker: int, status: int, detail: str, died: float | None = None) -> None:
        gone = [worker, status, detail, time.monotonic() if died is None else died, self._held.pop(worker, 0)]
        with suppress(ConnectionError):  # the next read detects that the socket is closed
            self._control.send(cast("bytes", msgpack.packb(gone)))


def _why_not(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        return f"{error}: its user has as many processes as it may, the limit is {limit} (ulimit -u), or its cgroup has"
    return str(error)


def _ended() -> Iterator[tuple[int, int]]:
    """Collect the dead children; yield (pid, status) of each."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _withstood(pids: Sequence[int]) -> str:
    """Return a sentence about the processes that a dead worker leaves behind, for the worker's error; empty if none."""
    if not pids:
        return ""
    named = [f"{pid} ({process.name(pid)})" for pid in pids[:_NAMED]]
    return f"what it had started cannot be killed and goes on: {', '.join(named)}{', ...' * (len(pids) > _NAMED)}"


def _draw_other_numbers() -> None:
    """Reseed numpy and torch, whose random state all children of a template share.

    Python reseeds `random` after a fork.
    """
    if (numpy := sys.modules.get("numpy.random")) is not None:
        cast("Any", numpy).seed()
    # only the CPU's generator: GPU generators are created at first use
    if (torch := sys.modules.get("torch")) is not None:
        cast("Any", torch).default_generator.seed()


def _settle_in(setup: dict[str, Any]) -> None:
    drop_other_launchers()
    os.environ.update(setup["env"])
    paths = setup["env"].get("PYTHONPATH", "").split(os.pathsep)
    if "OUTRIDER_PATH" in os.environ:  # set on a host: the folders of the image's included modules and of the runtime
        paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *os.environ["OUTRIDER_PATH"].split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # for Python processes that a task starts
    sys.path[:0] = filter(None, paths)
    if "TZ" in setup["env"]:
        time.tzset()
