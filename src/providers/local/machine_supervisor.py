"""The supervisor of a local pool's machines: it forks them, detects their end, and ends all of them with its client.

    watchdog -- supervisor -+- template                   imports slow modules, and forks the fork servers
                            +- fork server 0 -- workers   a machine is the process group of its fork server
                            +- executor 0                 in that group: serves the client on the machine's unix socket
                            +- SSH server 0               in that group, with Local(as_remote=True): for that socket
                            +- fork server 1 -- workers
                            +- executor 1

It has one thread and no event loop, and has imported the executors' modules once for all of them. It is a child
subreaper, so every process left by a dead machine becomes its child and is killed. Its control socket is its lease:
when the client closes the socket, or dies, everything ends. The supervisor also watches the client process itself,
because children that the client has forked without exec hold the socket open.
"""

from __future__ import annotations

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
from typing import Any, NoReturn

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from . import processes
from .process_state import describe
from .programs import Executor, ForkServerCode, Template, resolve, share_memory
from .sockets import EXECUTOR_SOCKET, SSH_SOCKET, listening

KILL_DEADLINE_S = 5.0
# Seconds to wait for a machine's other parts after one has ended, so that the cause can name all of them.
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
        """Return one clause. A part that exited by itself followed another part's end, unless all parts exited so."""
        by_force = {part: how for part, how in self.ended.items() if how != "ended by itself"} or self.ended
        if 1 < len(by_force) == len(self.parts) and len(set(by_force.values())) == 1:
            return next(iter(by_force.values())).removeprefix("was ")
        return " and ".join(f"its {part} {how}" for part, how in by_force.items())


class Begun(NamedTuple):
    """A machine with an executor and not yet a fork server. The fork server's end of their socket is kept here."""

    machine: LocalMachine
    order: dict[str, Any]
    control: socket.socket


def supervise(
    control: socket.socket, lifeline: int, client: int, directory: Path, work_mib: int | None, *entry_points: Any
) -> None:
    """Serve one pool until its client or its watchdog ends. ``client``: the client's pidfd; -1: none. ``lifeline``: a
    descriptor that becomes readable when the watchdog ends. ``entry_points``: the fields of a
    `providers.base.EntryPoints`.
    """
    fork_server, executor, template, preload, shared = entry_points
    processes.adopt_orphans()  # children do not inherit the setting
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
    """Put a child into the process group; if the group's number is the child's pid, the child becomes the leader."""
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
        self.work_mib = work_mib  # size of a node's directory for tasks; None: no limit
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
        self.awaited: list[dict[str, Any]] = []  # requests for machines that wait for the template
        self.late_at = 0.0

    def end_with(self, lifeline: int, client: int) -> None:
        """Watch for the end of the watchdog, and of the client if ``client`` is not -1, to end everything."""
        self.lifeline, self.client = lifeline, client
        for fd in (lifeline, client):
            if fd >= 0:
                self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        if not self.poll.poll(0):  # the client is still importing, so there is time
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
            if self.lifeline in ready:  # the client still needs the directory, to start another supervisor there
                self.end()
                return
            self.bury()

    def end(self) -> None:
        """Kill everything, and check that it is gone."""
        self.kill(self.machines)
        self.drop_template()
        deadline = time.monotonic() + KILL_DEADLINE_S
        while self.any_child_left() and time.monotonic() < deadline:
            time.sleep(0.001)

    # --- messages of the client ---------------------------------------------------------------------------------

    def from_client(self) -> bool:
        """Read once; return False if the client is gone."""
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
        """Start the template. Launches wait for it, since four machines that import the same modules take 4 times as
        long.
        """
        self.code.load()  # loaded before the fork, so that the template's children have it
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
        """Fork the executors of the requested machines; meanwhile, import the modules for their fork servers."""
        awaited, self.awaited = self.awaited, []
        begun = [each for order in awaited if (each := self.begin(order)) is not None]
        self.code.load()
        return begun

    def begin(self, order: dict[str, Any]) -> Begun | None:
        """Create the machine's directory, and fork its executor. On failure, report the machine as gone, with the
        cause.
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
        join(executor, executor)  # the group's leader until there is a fork server
        machine = LocalMachine(order["id"], executor, directory, {executor: EXECUTOR})
        self.machines.append(machine)
        return Begun(machine, order, of_fork_server)

    def complete(self, begun: Sequence[Begun]) -> None:
        """Fork the machines' fork servers, and report each machine to the client as started.

        A machine whose fork server cannot be forked is reported as gone, with the cause; the others continue.
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
        processes.prepare_removal()  # done now, while the client connects to the machines

    def fork_machine(self, env: dict[str, str], control: socket.socket) -> int:
        """Fork the machine's fork server and return its pid. It leads its own process group."""
        if self.template is not None:
            try:
                return self.template.fork(env, [control.fileno()])
            except BrokenPipeError:
                self.drop_template()
                self.kill_orphans()  # a template that does not respond may have forked
        group = processes.fork(lambda: self.become_machine(env, control), control)
        join(group, group)  # called in both processes, so that the group exists whichever runs first
        return group

    def become_machine(self, env: dict[str, str], control: socket.socket) -> NoReturn:
        os.setpgid(0, 0)
        os.environ.update(env)
        processes.give_back_descriptors()
        self.code.load()(control)

    def fork_executor(self, directory: Path, order: dict[str, Any], forks: socket.socket) -> int:
        def run(listener: socket.socket) -> None:
            os.environ.update(order["env"])  # contains the variables for the GPUs that the machine's tasks see
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
        """Fork the machine's SSH server. On failure, the machine is dead."""

        def run(listener: socket.socket) -> None:
            # asyncssh searches for a library by running gcc, which leaves temporary files if it is killed with the
            # machine. This process starts no other programs.
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
        """Reap ended children. A child that is no part of a machine was an orphan."""
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
        """End the remaining processes of dead machines, and report these machines to the client."""
        now = time.monotonic()
        for machine in list(self.machines):
            if machine.all_ended or (machine.ended and now >= machine.bury_at):
                cause = machine.cause
                self.kill([machine])
                self.say(op="gone", id=machine.id, cause=cause)

    def kill(self, machines: list[LocalMachine]) -> None:
        """End these machines and return when none of their processes is left. Bounded."""
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

        Orphans that are dead already count as well. Fork servers are subreapers themselves, so an orphan becomes this
        process's child only when its machine is dead. An orphan that dies between the listing and the kill counts,
        because its own children have just become this process's children.
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
