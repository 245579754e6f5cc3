"""The supervisor of a local pool's machines forks them, notices their end, and leaves nothing when its client goes.

    watchdog -- supervisor -+- template                   imports what takes long, and forks the fork servers
                            +- fork server 0 -- workers   a machine is the process group of its fork server
                            +- executor 0                 in it: serves the client on a unix socket of the machine
                            +- SSH server 0               in it, with Local(as_remote=True): forwards to that socket
                            +- fork server 1 -- workers
                            +- executor 1

It has one thread and no event loop, and has imported what the executors need, once for all of them. It is a child
subreaper, so whatever a dead machine leaves behind becomes its child and is killed. Its control socket is its
lease: when the client closes it, or dies, all of it ends. That the client is dead it also sees by itself: children of
the client, forked and not executed, hold the socket open.
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
OTHER_PART_S = 0.02  # when one part of a machine has ended: for the others to end too, so that the cause can say so
IMPORT_S = 30.0  # after that, nodes import for themselves
FORK_SERVER, EXECUTOR, SSH_SERVER = "fork server", "executor", "SSH server"


@dataclass(slots=True)
class LocalMachine:
    """The processes of one machine, in one process group. Without any of them it is dead."""

    id: str
    group: int
    directory: Path
    parts: dict[int, str] = field(default_factory=dict)  # pid -> what it is
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
        """One clause. A part that ended by itself did so because of another one, unless all did."""
        by_force = {part: how for part, how in self.ended.items() if how != "ended by itself"} or self.ended
        if 1 < len(by_force) == len(self.parts) and len(set(by_force.values())) == 1:
            return next(iter(by_force.values())).removeprefix("was ")
        return " and ".join(f"its {part} {how}" for part, how in by_force.items())


class Begun(NamedTuple):
    """A machine that has its executor, and not yet its fork server, whose end of the socket between them is here."""

    machine: LocalMachine
    order: dict[str, Any]
    control: socket.socket


def supervise(
    control: socket.socket, lifeline: int, client: int, directory: Path, work_mib: int | None, *entry_points: Any
) -> None:
    """Serve one pool until its client, of which ``client`` is a pidfd (-1: none), goes, or its watchdog, of which
    ``lifeline`` is readable then. ``entry_points``: the fields of a `providers.base.EntryPoints`.
    """
    fork_server, executor, template, preload, shared = entry_points
    processes.adopt_orphans()  # which a child does not inherit
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
    """Put a child of ours into the process group, which it leads if it has that number itself."""
    with suppress(PermissionError, ProcessLookupError):
        os.setpgid(pid, group)


def _may_mount() -> None:
    try:
        processes.mount_unseen()
    except OSError as error:
        print(f"Local(work_mib=...) needs the right to mount (root, or CAP_SYS_ADMIN): {error}", file=sys.stderr)
        os._exit(1)


class MachineSupervisor:
    """Machines by process group; answers one client."""

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
        self.work_mib = work_mib  # None: tasks may fill the disk
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
        self.awaited: list[dict[str, Any]] = []  # machines that wait for it
        self.late_at = 0.0

    def end_with(self, lifeline: int, client: int) -> None:
        """End everything when the descriptor of the watchdog, or of the client (if it is not -1), becomes readable."""
        self.lifeline, self.client = lifeline, client
        for fd in (lifeline, client):
            if fd >= 0:
                self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        if not self.poll.poll(0):  # the client is still importing
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
            if self.lifeline in ready:  # the directory is the client's, who starts another supervisor there
                self.end()
                return
            self.bury()

    def end(self) -> None:
        """Kill everything, and prove it."""
        self.kill(self.machines)
        self.drop_template()
        deadline = time.monotonic() + KILL_DEADLINE_S
        while self.any_child_left() and time.monotonic() < deadline:
            time.sleep(0.001)

    # --- the client ---------------------------------------------------------------------------------------------

    def from_client(self) -> bool:
        """One read; False when the client is gone."""
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
            pass  # the client is gone; the next read says so

    # --- the template -------------------------------------------------------------------------------------------

    def start_template(self, make: Callable[..., Template], modules: Sequence[str]) -> None:
        """Launches wait until it is ready: four machines that import the same at once take four times as long."""
        self.code.load()  # the template's children have it then
        me = os.getpid()

        def become(order: dict[str, str], fds: list[int]) -> NoReturn:
            control = socket.socket(fileno=fds[0])
            processes.become(me, lambda: self.become_machine(order, control), control)

        try:
            self.template = make(modules, become, lead=True)
        except OSError:  # then as without
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
        """Fork the executors of the machines that are awaited, and import what their fork servers need meanwhile."""
        awaited, self.awaited = self.awaited, []
        begun = [each for order in awaited if (each := self.begin(order)) is not None]
        self.code.load()
        return begun

    def begin(self, order: dict[str, Any]) -> Begun | None:
        """Make the machine's directory, and fork its executor. One that cannot be begun is reported as gone, with the
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
        except OSError as error:  # too many processes, a full disk
            for each in forks:
                each.close()
            self.clear(directory)
            self.say(op="gone", id=order["id"], cause=f"could not be started ({error})")
            return None
        join(executor, executor)  # until it has a fork server
        machine = LocalMachine(order["id"], executor, directory, {executor: EXECUTOR})
        self.machines.append(machine)
        return Begun(machine, order, of_fork_server)

    def complete(self, begun: Sequence[Begun]) -> None:
        """Fork the machines' fork servers, and tell the client of each machine that it is there.

        One whose fork server cannot be forked is reported as gone, with the cause, and the others go on.
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
        processes.prepare_removal()  # while the client connects to them

    def fork_machine(self, env: dict[str, str], control: socket.socket) -> int:
        """Fork the machine's fork server and return its pid. It leads its own process group."""
        if self.template is not None:
            try:
                return self.template.fork(env, [control.fileno()])
            except BrokenPipeError:
                self.drop_template()
                self.kill_orphans()  # a template that does not answer may have forked
        group = processes.fork(lambda: self.become_machine(env, control), control)
        join(group, group)  # in both processes: whoever comes first
        return group

    def become_machine(self, env: dict[str, str], control: socket.socket) -> NoReturn:
        os.setpgid(0, 0)
        os.environ.update(env)
        processes.give_back_descriptors()
        self.code.load()(control)

    def fork_executor(self, directory: Path, order: dict[str, Any], forks: socket.socket) -> int:
        def run(listener: socket.socket) -> None:
            os.environ.update(order["env"])  # it tells of the GPUs that its tasks see
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
        """Fork the machine's SSH server. Where that cannot be, the machine is dead."""

        def run(listener: socket.socket) -> None:
            # asyncssh looks for a library by means of gcc, which leaves its temporary files when it is killed with the
            # machine. This process starts nothing else.
            os.environ["PATH"] = os.devnull
            from . import ssh_server  # which takes long, and few pools want

            ssh_server.serve(listener, machine.directory, **ssh)

        try:
            with listening(machine.directory / SSH_SOCKET) as listener:
                pid = processes.fork(lambda: run(listener), listener)
        except OSError as error:  # too many processes, no descriptor
            machine.part_ended(SSH_SERVER, f"could not be started ({error})")
            return
        machine.parts[pid] = SSH_SERVER
        join(pid, machine.group)

    def reap(self) -> None:
        """Collect the dead. What is no part of a machine was an orphan."""
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
        """Machines that are dead: end what is left of them and tell the client."""
        now = time.monotonic()
        for machine in list(self.machines):
            if machine.all_ended or (machine.ended and now >= machine.bury_at):
                cause = machine.cause
                self.kill([machine])
                self.say(op="gone", id=machine.id, cause=cause)

    def kill(self, machines: list[LocalMachine]) -> None:
        """End these machines and return when nothing of theirs is left. Bounded."""
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
        """Kill orphans and return whether there were any: our children that are no part of a machine and no template.

        Dead orphans count as well. Fork servers are subreapers themselves, so an orphan reaches us only when its
        machine is dead. One that died between the look and the kill counts: its own children became ours just then.
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
