"""The fork server: a process that forks the workers, and kills all processes that a dead worker has left.

The fork server runs no user code and no threads. It is the parent of every worker, and becomes the parent of the
processes that a dead worker leaves (its orphans). Therefore it can kill all of them and confirm their end. It reports a
worker's death when no orphan is left, or with the names of orphans that cannot be killed. Requests arrive over one
SOCK_SEQPACKET socket; when the socket closes, the fork server ends with all of its workers. Measured: the import of
this module takes 40 ms, a fork 2 ms.

`MemoryWatch` finds tasks whose processes together exceed the task's memory limit. The kernel can limit the memory of a
cgroup, but this needs root, and the kernel would kill only one process of a task. Therefore `MemoryWatch` adds up the
memory of each task's processes every `LOOK_S` seconds: a task that grows by 5 GB/s is found 0.5 GB above its limit. A
check takes 20 us for each process. After a long check the next check is delayed, because the fork server has other
work.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, cast

import msgpack

from . import context, limits, process
from .environ import drop_other_launchers
from .holdings import Allotment
from .log_socket import VARIABLE, LogEnd
from .notice_page import NoticePage
from .pipe import ORDER_FORK, ORDER_KILL, ORDER_SETUP
from .signal_requests import StackFile
from .template import IMPORT_S, Template
from .worker import ThreadWorker, Worker

LOOK_S = 0.1
# pause after a check, as a multiple of its duration: checks take at most a tenth of the fork server's time
LOOKS_APART = 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """The watched workers: the pid of each, and a memory limit for it and all its descendants."""

    def __init__(
        self, held: Callable[[int, int], int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a monitor that watches no process yet. ``held``: used instead of `held_bytes`, in tests."""
        self._held, self._clock = held or held_bytes, clock
        self._limits: dict[int, int] = {}  # pid of a watched process -> limit in bytes
        self._next = 0.0

    def add(self, pid: int, limit_bytes: int) -> None:
        self._limits[pid] = limit_bytes

    def remove(self, pid: int) -> None:
        self._limits.pop(pid, None)

    def due(self) -> float | None:
        """Return the time at which to call `look` next; None if no process is watched."""
        return self._next if self._limits else None

    def look(self, now: float) -> list[tuple[int, int]]:
        """Return (pid, bytes held) of each process that exceeds its limit with its descendants; stop watching these."""
        if not self._limits or now < self._next:
            return []
        began = self._clock()
        over = [(pid, held) for pid, limit in self._limits.items() if (held := self._held(pid, limit)) > limit]
        self._next = now + max(LOOK_S, LOOKS_APART * (self._clock() - began))
        for pid, _ in over:
            del self._limits[pid]
        return over


def held_bytes(root: int, enough: int) -> int:
    """Return the memory of a process and all its descendants, in bytes; 0 if it cannot exceed ``enough`` bytes.

    Memory that several processes share, as after a fork, is divided among them. Reading these shares takes 20 ms for a
    process of 4 GB. So they are read only if the memory exceeds ``enough`` when shared memory counts in full for each
    process.
    """
    pids = [root, *process.descendants(root)]
    if sum(map(_resident_bytes, pids)) <= enough:
        return 0
    return sum(map(_proportional_bytes, pids))


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):  # the process has ended
        return 0


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended, or has changed its user, so that the file is not readable
        return _resident_bytes(pid)
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    held = sizes.get("Pss", 0)
    if "Pss_Anon" in sizes:  # exists since Linux 5.9; excludes mapped files, whose pages the kernel can drop
        held = sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0)
    return held + sizes.get("SwapPss", 0)


_MESSAGE_BYTES = 256 * 1024
STRAYS_S = 2.0  # time for the processes that a dead worker has left to end after a kill
ENDS_S = 60.0  # time for a killed worker to end: to free eight GPUs or terabytes of memory, the kernel may need long
# at its own end, the fork server kills its children at least so many times, even after its time limit: it may have been
# stopped (SIGSTOP) until then
END_TRIES = 20
_AGAIN_MS = 100  # interval between checks for a dead worker's remaining processes
_NAMED = 8  # number of unkillable processes that an error names


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
        with suppress(PermissionError):  # PermissionError: this process already leads a process group
            os.setsid()  # this process must survive a kill of the executor server's group, to end the workers
        process.adopt_orphans()
        self._pid = os.getpid()
        self._old_limits = limits.raise_descriptors()
        self._setup_error = ""  # if the SETUP request lost its descriptor: the error with which every fork fails
        self._control = control
        self._setup: dict[str, Any] = {}
        self._settled = False
        self._workers: dict[int, int] = {}  # pid -> worker
        self._killed: dict[int, float] = {}  # pid of a killed worker that has not ended yet -> time of the kill
        self._dead: dict[int, tuple[int, float]] = {}  # dead worker, not reported yet -> (status, time of death)
        self._strays: dict[int, float] = {}  # pid of a child that is no worker -> when this process first saw it
        self._template: Template | None = None
        self._memory = MemoryWatch()
        self._held: dict[int, int] = {}  # worker killed for its memory -> the bytes that it held
        # worker -> its fork request, kept until the template is ready
        self._waiting: dict[int, tuple[int, bool, Allotment, list[int]]] = {}
        self._import_deadline = 0.0  # until this time, forks wait for the template's imports
        self._ready = select.poll()
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        gc.collect()
        gc.freeze()  # the garbage collector then writes nothing into these objects, whose memory the workers share

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
            if order == ORDER_FORK:
                self._report_gone(rest[0], -1, limits.story())
            else:
                self._setup_error = limits.story()
            return
        if order == ORDER_SETUP:
            self._setup = rest[0]
            context.set_notice_page(NoticePage(fds[0]))
            os.environ[context.NOTICE_PAGE] = f"/proc/{self._pid}/fd/{fds[0]}"
            process.shield(self._setup["signals"])
            if modules := [each for each in self._setup["preload"] if each not in sys.modules]:
                self._start_template(modules)
        elif order == ORDER_FORK:
            worker, index, fresh, allotment = rest
            if self._importing is not None:
                self._waiting[worker] = index, fresh, Allotment(*allotment), fds
            else:
                self._fork(worker, index, fresh, Allotment(*allotment), fds)
        elif order == ORDER_KILL:
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
        """Kill each worker whose processes together exceed the worker's memory limit."""
        for pid, held_bytes in self._memory.look(time.monotonic()):
            if (worker := self._workers.get(pid)) is not None and pid not in self._killed:
                self._held[worker] = held_bytes
                self._kill(worker)

    def _fork(self, worker: int, index: int, fresh: bool, allotment: Allotment, fds: list[int]) -> None:
        try:
            if self._setup_error:
                raise OSError(self._setup_error)
            pid = self._forked(index, fresh, allotment, fds)
        except OSError as error:  # for example: no memory is left, or too many processes run
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
        """Start the template, a process that imports ``modules`` and then forks the workers.

        Workers are not forked before the template is ready: without it, each worker would import the modules itself.
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
        except OSError:  # no template: this process forks the workers
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
        """Make a worker of this forked child: close what belongs to the fork server, then run tasks until the end."""
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
                os.environ.pop(VARIABLE, None)  # may be inherited: the client may itself run in a task of a pool
            else:
                os.environ[VARIABLE] = logged.path
            folder = Path(self._setup["cwd"])
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # a task may have removed the folder
            os.chdir(folder)
            limits.lower_descriptors(self._old_limits)
            several = self._setup["threads"] > 1 and not fresh
            context.set_notes(StackFile(stacks, locked=several))
            sock, outputs = socket.socket(fileno=pipe), {1: stdout, 2: stderr}
            if several:
                ThreadWorker(sock, index, self._setup, outputs).serve()
            Worker(sock, index, self._setup, outputs, fresh=fresh, logged=logged).serve()
        except BaseException:  # noqa: BLE001 - else the child would continue as a second fork server
            os.write(2, traceback.format_exc().encode(errors="replace"))  # not sys.stderr, which may have been replaced
        finally:
            os._exit(1)

    def _reap(self) -> None:
        """Report dead workers, once all orphans (processes that dead workers have left) are gone.

        An orphan may survive SIGKILL because it belongs to another user or hangs in the kernel. Then the death of its
        worker is reported after `STRAYS_S`, and later reports do not wait for this orphan. A killed worker may hang in
        the kernel too, for example in a driver: its own code cannot run any more, and after `ENDS_S` it counts as dead.
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
        """Kill all children and end this process, because the executor server has ended or closed the socket."""
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
        with suppress(ConnectionError):  # the socket is closed: the next read ends this process
            self._control.send(cast("bytes", msgpack.packb(gone)))


def _why_not(error: OSError) -> str:
    if error.errno == errno.EAGAIN:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        return f"{error}: its user has as many processes as it may, the limit is {limit} (ulimit -u), or its cgroup has"
    return str(error)


def _ended() -> Iterator[tuple[int, int]]:
    """Reap the children that have ended; yield (pid, exit status) of each."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            yield ended


def _withstood(pids: Sequence[int]) -> str:
    """Return a sentence for a worker's error about these processes, which could not be killed; "" if there are none."""
    if not pids:
        return ""
    named = [f"{pid} ({process.name(pid)})" for pid in pids[:_NAMED]]
    return f"what it had started cannot be killed and goes on: {', '.join(named)}{', ...' * (len(pids) > _NAMED)}"


def _draw_other_numbers() -> None:
    """Reseed the random generators of numpy and torch: all children of a template begin with the same state.

    Python itself reseeds the module `random` after a fork.
    """
    if (numpy := sys.modules.get("numpy.random")) is not None:
        cast("Any", numpy).seed()
    # only torch's CPU generator: its GPU generators do not exist before their first use
    if (torch := sys.modules.get("torch")) is not None:
        cast("Any", torch).default_generator.seed()


def _settle_in(setup: dict[str, Any]) -> None:
    drop_other_launchers()
    os.environ.update(setup["env"])
    paths = setup["env"].get("PYTHONPATH", "").split(os.pathsep)
    if "OUTRIDER_PATH" in os.environ:  # set by the daemon: folders of the image's modules and of Outrider
        paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *os.environ["OUTRIDER_PATH"].split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # for Python programs that a task starts
    sys.path[:0] = filter(None, paths)
    if "TZ" in setup["env"]:
        time.tzset()
