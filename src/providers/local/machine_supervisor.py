"""The supervisor of a local pool's machines. It forks them, detects their end, and ends all when its client ends.

    watchdog -- supervisor -+- template                   imports slow modules, and forks the fork servers
                            +- fork server 0 -- workers   a machine is the process group of its fork server
                            +- executor 0                 in that group: serves the client on the machine's unix socket
                            +- SSH server 0               in that group, with Local(as_remote=True): forwards to it
                            +- fork server 1 -- workers
                            +- executor 1

The supervisor has one thread and no event loop, and has imported the executors' modules once for all executors. It is a
child subreaper, so every process that a dead machine leaves becomes its child, and is killed. Its control socket is its
lease: when the client closes the socket, or dies, the supervisor ends everything. The supervisor also watches the
client process itself, because children that the client has forked without exec hold the socket open.

`ForkServer`, `Executor` and `Template` have the arguments of the processes' programs; `Template` and `ForkServerCode`
say when the supervisor imports these programs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..shared.sockets import EXECUTOR_SOCKET, SSH_SOCKET, listening
from . import processes
from .process_state import describe

KILL_DEADLINE_S = 5.0
# After one part (process) of a machine has ended, wait for this time (seconds) for the other parts, so that the
# reported cause can name all parts.
OTHER_PART_S = 0.02
IMPORT_S = 30.0  # seconds to wait for the template; after that, each node imports the modules itself
FORK_SERVER, EXECUTOR, SSH_SERVER = "fork server", "executor", "SSH server"


@dataclass(slots=True)
class LocalMachine:
    """The processes of one machine, in one process group. If one of them is missing, the machine is dead."""

    id: str
    group: int
    directory: Path
    parts: dict[int, str] = field(default_factory=dict)  # pid -> the part's name
    ended: dict[str, str] = field(default_factory=dict)  # how each part ended
    bury_at: float = 0.0

    def part_ended(self, part: str, how: str) -> None:
        if not self.ended:
            self.bury_at = time.monotonic() + OTHER_PART_S
        self.ended[part] = how

    @property
    def all_ended(self) -> bool:
        return self.ended.keys() >= set(self.parts.values())

    @property
    def cause(self) -> str:
        """Return why the machine died, as one clause.

        A part (process) that exited by itself did so because another part had ended, so the clause leaves it out,
        unless all parts exited by themselves.
        """
        by_force = {part: how for part, how in self.ended.items() if how != "ended by itself"} or self.ended
        if 1 < len(by_force) == len(self.parts) and len(set(by_force.values())) == 1:
            return next(iter(by_force.values())).removeprefix("was ")
        return " and ".join(f"its {part} {how}" for part, how in by_force.items())


class Begun(NamedTuple):
    """A machine that has an executor but no fork server yet. ``control`` is the fork server's end of the socket between
    the two.
    """

    machine: LocalMachine
    order: dict[str, Any]
    control: socket.socket


def supervise(
    control: socket.socket, lifeline: int, client: int, directory: Path, work_mib: int | None, *entry_points: Any
) -> None:
    """Serve one pool until its client or its watchdog ends.

    Args:
        control: The socket to the client.
        lifeline: A descriptor that becomes readable when the watchdog ends.
        client: A pidfd of the client; -1: none.
        directory: The pool's directory.
        work_mib: Size in MiB of a node's directory for tasks; None: no limit.
        entry_points: The fields of a `providers.base.EntryPoints`.
    """
    fork_server, executor, template, preload, shared = entry_points
    processes.adopt_orphans()  # needed here, too: a forked process does not inherit this setting from the watchdog
    processes.ignore_hangups()
    processes.raise_descriptors()
    if work_mib is not None:
        _may_mount()
    code = ForkServerCode(fork_server, shared)
    supervisor = MachineSupervisor(control, directory, code, resolve(executor), work_mib)
    supervisor.end_with(lifeline, client)
    if template and preload:
        supervisor.start_template(resolve(template), preload)
    supervisor.serve()


def join(pid: int, group: int) -> None:
    """Put a child into the process group ``group``. If ``group`` is the pid of the child, the child becomes the group's
    leader.
    """
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, group)


def _may_mount() -> None:
    try:
        processes.mount_unseen()
    except OSError as error:
        print(f"Local(work_mib=...) needs the right to mount (root, or CAP_SYS_ADMIN): {error}", file=sys.stderr)
        os._exit(1)


class MachineSupervisor:
    """Manages machines, each a process group, for one client."""

    def __init__(
        self,
        control: socket.socket,
        directory: Path,
        code: ForkServerCode,
        executor: Executor,
        work_mib: int | None = None,
    ) -> None:
        self.control, self.directory = control, directory
        self.code, self.executor = code, executor
        self.work_mib = work_mib  # size in MiB of a node's directory for tasks; None: no limit
        self.machines: list[LocalMachine] = []
        self.unread = b""
        self.lifeline = self.client = -1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.children = processes.wake_on_child_death()
        self.poll = select.poll()
        for sock in (self.control, self.children):
            self.poll.register(sock, select.POLLIN)
        share_memory()
        self.template: Template | None = None
        self.awaited: list[dict[str, Any]] = []  # requested machines that cannot start before the template is ready
        self.late_at = 0.0

    def end_with(self, lifeline: int, client: int) -> None:
        """Watch the watchdog and the client: when one of them ends, everything ends. ``client`` is -1: no client to
        watch.
        """
        self.lifeline, self.client = lifeline, client
        for fd in (lifeline, client):
            if fd >= 0:
                self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        # The client has sent nothing yet, because it still imports modules: there is time for this import.
        if not self.poll.poll(0):
            self.code.load()
            processes.prepare_removal()
        while True:
            ready = {fd for fd, _ in self.poll.poll(self.until_next_ms())}
            if self.children.fileno() in ready:
                self.children.recv(4096)
                self.reap()
            if self.template is not None:
                self.look_at(self.template, heard=self.template.fileno() in ready)
            if self.client in ready or (self.control.fileno() in ready and not self.from_client()):
                self.end()
                processes.remove_tree(self.directory)
                return
            # The watchdog has ended; leave the directory to the client, which may start another supervisor there.
            if self.lifeline in ready:
                self.end()
                return
            self.bury()

    def end(self) -> None:
        """Kill all processes of the pool, and wait (bounded) until they are gone."""
        self.kill(self.machines)
        self.drop_template()
        deadline = time.monotonic() + KILL_DEADLINE_S
        while self.any_child_left() and time.monotonic() < deadline:
            time.sleep(0.001)

    # --- messages of the client ---------------------------------------------------------------------------------

    def from_client(self) -> bool:
        """Read messages of the client once; return False if the client is gone."""
        try:
            data = self.control.recv(processes.FRAME_BYTES)
        except ConnectionResetError:
            return False
        if not data:
            return False
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            match request["op"]:
                case "launch":
                    self.awaited += request["machines"]
                    begun = self.begin_awaited() if self.template is None or self.template.ready else []
                    self.say(op="taken", request=request["request"])
                    self.complete(begun)
                case "terminate":
                    self.say(op="taken", request=request["request"])
                    ids = set(request["ids"])
                    self.awaited = [order for order in self.awaited if order["id"] not in ids]
                    self.kill([machine for machine in self.machines if machine.id in ids])
                    self.say(op="terminated", call=request["call"])
        return True

    def say(self, **message: object) -> None:
        try:
            self.control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the client is gone; the next read detects this

    # --- the template -------------------------------------------------------------------------------------------

    def start_template(self, make: Callable[..., Template], modules: Sequence[str]) -> None:
        """Start the template (a process that imports slow modules and forks the fork servers).

        Launches wait for the template: four machines that import the same modules at the same time take 4 times as
        long.
        """
        self.code.load()  # imported before the template is forked, so that the template's children have this code, too
        me = os.getpid()

        def become(order: dict[str, str], fds: list[int]) -> NoReturn:
            control = socket.socket(fileno=fds[0])
            processes.become(me, lambda: self.become_machine(order, control), control)

        try:
            self.template = make(modules, become, lead=True)
        except OSError:  # machines then start without a template
            return
        self.poll.register(self.template.fileno(), select.POLLIN)
        self.late_at = time.monotonic() + IMPORT_S

    def look_at(self, template: Template, *, heard: bool) -> None:
        try:
            if heard:
                template.on_readable()
        except BrokenPipeError:
            self.drop_template()
        if not template.ready and time.monotonic() >= self.late_at:
            self.drop_template()
        if self.template is None or template.ready:
            self.complete(self.begin_awaited())

    def drop_template(self) -> None:
        if self.template is not None:
            self.poll.unregister(self.template.fileno())
            self.template.close()
            self.template = None

    # --- machines -----------------------------------------------------------------------------------------------

    def begin_awaited(self) -> list[Begun]:
        """Fork the executors of the requested machines. Then import the modules for their fork servers, while the
        executors start.
        """
        awaited, self.awaited = self.awaited, []
        begun = [each for order in awaited if (each := self.begin(order)) is not None]
        self.code.load()
        return begun

    def begin(self, order: dict[str, Any]) -> Begun | None:
        """Create the machine's directory, and fork its executor. On failure, report the machine as gone, with the
        cause, and return None.
        """
        directory = self.directory.parent / order["id"]  # <pool>/n<number>
        forks: tuple[socket.socket, ...] = ()
        try:
            directory.mkdir(mode=0o700)
            (directory / "work").mkdir(mode=0o700)
            if self.work_mib is not None:
                processes.mount_small(directory / "work", self.work_mib)
            forks = of_executor, of_fork_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with of_executor:
                executor = self.fork_executor(directory, order, of_executor)
        except OSError as error:  # e.g. too many processes, or a full disk
            for each in forks:
                each.close()
            self.clear(directory)
            self.say(op="gone", id=order["id"], cause=f"could not be started ({error})")
            return None
        join(executor, executor)  # the executor leads the process group until the fork server exists
        machine = LocalMachine(order["id"], executor, directory, {executor: EXECUTOR})
        self.machines.append(machine)
        return Begun(machine, order, of_fork_server)

    def complete(self, begun: Sequence[Begun]) -> None:
        """Fork a fork server for each of these machines, and report each machine to the client as started.

        If a fork server cannot be forked, its machine is reported as gone, with the cause; the other machines continue.
        """
        for machine, order, control in begun:
            (executor,) = machine.parts
            with control:
                try:
                    machine.group = self.fork_machine(order["env"], control)
                except OSError as error:
                    self.kill([machine])
                    self.say(op="gone", id=machine.id, cause=f"could not be started ({error})")
                    continue
            machine.parts[machine.group] = FORK_SERVER
            join(executor, machine.group)
            if order["ssh"] is not None:
                self.add_ssh_server(machine, order["ssh"])
            if not machine.ended:
                self.say(op="launched", id=machine.id, group=machine.group, pid=executor)
        processes.prepare_removal()  # imports modules now, because the client is busy with connecting to the machines

    def fork_machine(self, env: dict[str, str], control: socket.socket) -> int:
        """Fork the machine's fork server, as the leader of a new process group. Return its pid."""
        if self.template is not None:
            try:
                return self.template.fork(env, [control.fileno()])
            except BrokenPipeError:
                self.drop_template()
                self.kill_orphans()  # the template may have forked a fork server before it failed: kill that process
        group = processes.fork(lambda: self.become_machine(env, control), control)
        # Parent and child both make this call, so that the group exists whichever of them runs first.
        join(group, group)
        return group

    def become_machine(self, env: dict[str, str], control: socket.socket) -> NoReturn:
        os.setpgid(0, 0)
        os.environ.update(env)
        processes.give_back_descriptors()
        self.code.load()(control)

    def fork_executor(self, directory: Path, order: dict[str, Any], forks: socket.socket) -> int:
        def run(listener: socket.socket) -> None:
            os.environ.update(order["env"])  # sets the variables that say which GPUs the machine's tasks see
            self.executor(
                listener,
                forks,
                directory=directory,
                same_host=order["same_host"],
                accelerators=order["accelerators"],
                sharing=order["sharing"],
            )
            os._exit(0)

        with listening(directory / EXECUTOR_SOCKET) as listener:
            return processes.fork(lambda: run(listener), listener, forks)

    def add_ssh_server(self, machine: LocalMachine, ssh: dict[str, str]) -> None:
        """Fork the machine's SSH server. If that fails, the machine counts as dead."""

        def run(listener: socket.socket) -> None:
            # asyncssh runs gcc to search for a library, and a killed gcc leaves temporary files. This process starts no
            # other programs, so it needs no PATH.
            os.environ["PATH"] = os.devnull
            from . import ssh_server  # imported here: the import is slow, and few pools need it

            ssh_server.serve(listener, machine.directory, **ssh)

        try:
            with listening(machine.directory / SSH_SOCKET) as listener:
                pid = processes.fork(lambda: run(listener), listener)
        except OSError as error:  # e.g. too many processes, or no free descriptor
            machine.part_ended(SSH_SERVER, f"could not be started ({error})")
            return
        machine.parts[pid] = SSH_SERVER
        join(pid, machine.group)

    def reap(self) -> None:
        """Reap ended children, and record which machines have lost a part. All other children were orphans."""
        for pid, status in processes.ended_children():
            for machine in self.machines:
                if pid in machine.parts:
                    machine.part_ended(machine.parts[pid], describe(status))

    def until_next_ms(self) -> float | None:
        times = [machine.bury_at for machine in self.machines if machine.ended]
        if self.template is not None and not self.template.ready:
            times.append(self.late_at)
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def bury(self) -> None:
        """Kill the remaining processes of each dead machine, and report the machine to the client as gone."""
        now = time.monotonic()
        for machine in list(self.machines):
            if machine.all_ended or (machine.ended and now >= machine.bury_at):
                cause = machine.cause
                self.kill([machine])
                self.say(op="gone", id=machine.id, cause=cause)

    def kill(self, machines: list[LocalMachine]) -> None:
        """End these machines and return when none of their processes is left. The wait is bounded."""
        for machine in machines:
            processes.kill_group(machine.group)
        deadline = time.monotonic() + KILL_DEADLINE_S
        for machine in machines:
            while self.anything_left(machine) and time.monotonic() < deadline:
                time.sleep(0.0005)
            self.machines = [each for each in self.machines if each is not machine]
            self.clear(machine.directory)
        while self.kill_orphans() and time.monotonic() < deadline:
            time.sleep(0.0005)

    def clear(self, directory: Path) -> None:
        if self.work_mib is not None:
            processes.unmount(directory / "work")
        processes.remove_tree(directory)

    def anything_left(self, machine: LocalMachine) -> bool:
        self.reap()
        return processes.group_lives(machine.group)

    def kill_orphans(self) -> bool:
        """Kill orphans: children that are neither part of a machine nor the template. Return whether there were any.

        Fork servers are subreapers themselves, so an orphan becomes this process's child only when its machine is dead.
        An orphan that is dead when it gets the signal also counts, because its own children have just become this
        process's children: the caller has to look again.
        """
        self.reap()
        mine = {pid for machine in self.machines for pid in machine.parts}
        if self.template is not None:
            mine.add(self.template.pid)
        orphans = [pid for pid in processes.children() if pid not in mine]
        for pid in orphans:
            processes.kill(pid)
        return bool(orphans)

    def any_child_left(self) -> bool:
        self.kill_orphans()
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        return True


# --- programs ---------------------------------------------------------------------------------------------------------


class ForkServer(Protocol):
    def __call__(self, control: socket.socket) -> NoReturn: ...


class Executor(Protocol):
    def __call__(
        self,
        listener: socket.socket,
        forks: socket.socket,
        *,
        directory: Path,
        same_host: bool,
        accelerators: Sequence[tuple[str, float]],
        sharing: int,
    ) -> None: ...


class Template(Protocol):
    """A process that imports modules and forks from itself, created by `EntryPoints.template`. Each method raises
    BrokenPipeError if the process has ended.
    """

    pid: int
    ready: bool

    def fileno(self) -> int: ...
    def on_readable(self) -> None: ...
    def fork(self, order: object, fds: Sequence[int]) -> int: ...
    def close(self) -> None: ...


class ForkServerCode:
    """The code of fork servers and workers. The supervisor imports it while it waits for its client.

    If the supervisor does not have to wait, it imports the code after it has forked the first executors, which do not
    need this code, and which start on other cores in the meantime.
    """

    def __init__(self, fork_server: str, shared: Sequence[str]) -> None:
        self._fork_server, self._shared = fork_server, shared
        self._serve: ForkServer | None = None

    def load(self) -> ForkServer:
        """Import the code on the first call, and return the program of a fork server."""
        if self._serve is not None:
            return self._serve
        gc.disable()  # nothing could be collected yet, and collections would delay the imports
        for module in self._shared:
            importlib.import_module(module)
        serve: ForkServer = resolve(self._fork_server)
        share_memory()
        self._serve = serve
        return serve


def share_memory() -> None:
    """Exclude all existing objects from garbage collection: their memory pages then stay shared with the forked
    children.
    """
    gc.freeze()
    gc.enable()


def resolve(name: str) -> Any:
    """Return the object at ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
