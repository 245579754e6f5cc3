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

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ...lazy_dataclass import dataclass
from . import processes, watchdog
from .sockets import EXECUTOR_SOCKET, SSH_SOCKET, listening

KILL_DEADLINE_S = 5.0
OTHER_PART_S = 0.02  # when one part of a machine has ended: for the others to end too, so that the cause can say so
IMPORT_S = 30.0  # after that, nodes import for themselves
FORK_SERVER, EXECUTOR, SSH_SERVER = "fork server", "executor", "SSH server"


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
    """The process that `EntryPoints.template` makes. Each of its methods raises BrokenPipeError when it has ended."""

    pid: int
    ready: bool

    def fileno(self) -> int: ...
    def on_readable(self) -> None: ...
    def fork(self, order: object, fds: Sequence[int]) -> int: ...
    def close(self) -> None: ...


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


def main(control_fd: int, client: int, directory: str, work_mib: int | None, *entry_points: Any) -> NoReturn:
    """Serve one pool until its client, of which ``client`` is a pidfd (-1: none), goes. ``entry_points``: the fields
    of a `providers.base.EntryPoints`.
    """
    fork_server, executor, template, preload, shared = entry_points
    try:
        control = socket.socket(fileno=control_fd)
        processes.adopt_orphans()
        processes.wait_ones_turn()
        lifeline = watchdog.stand_by(control, client, Path(directory))
        control.sendall(json.dumps({"op": "supervisor", "pid": os.getpid()}).encode() + b"\n")
        processes.adopt_orphans()  # which a child does not inherit
        processes.ignore_hangups()
        processes.raise_descriptors()
        if work_mib is not None:
            _may_mount()
        for module in shared:
            importlib.import_module(module)
        supervisor = MachineSupervisor(control, Path(directory), resolve(fork_server), resolve(executor), work_mib)
        supervisor.end_with(lifeline, client)
        if template and preload:
            supervisor.start_template(resolve(template), preload)
        supervisor.serve()
    except BaseException:  # noqa: BLE001 - nobody above; the log is what the client reads
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the interpreter's own tidying costs 15 ms


def resolve(name: str) -> Any:
    """The object at ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


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
        fork_server: ForkServer,
        executor: Executor,
        work_mib: int | None = None,
    ) -> None:
        self.control, self.directory = control, directory
        self.fork_server, self.executor = fork_server, executor
        self.work_mib = work_mib  # None: tasks may fill the disk
        self.machines: dict[int, LocalMachine] = {}  # by process group, which is the fork server's pid
        self.unread = b""
        self.lifeline = self.client = -1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.children = processes.wake_on_child_death()
        self.poll = select.poll()
        for sock in (self.control, self.children):
            self.poll.register(sock, select.POLLIN)
        gc.freeze()  # keeps pages shared with the children shared
        gc.enable()  # what was disabled while we imported
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
        while True:
            ready = {fd for fd, _ in self.poll.poll(self.until_next_ms())}
            if self.children.fileno() in ready:
                self.children.recv(4096)
                self.reap()
            if self.template is not None:
                self.look_at(self.template, heard=self.template.fileno() in ready)
            if self.client in ready or (self.control.fileno() in ready and not self.from_client()):
                self.end()
                shutil.rmtree(self.directory, ignore_errors=True)
                return
            if self.lifeline in ready:  # the directory is the client's, who starts another supervisor there
                self.end()
                return
            self.bury()

    def end(self) -> None:
        """Kill everything, and prove it."""
        self.kill(list(self.machines.values()))
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
            self.say(op="taken", request=request["request"])
            match request["op"]:
                case "launch":
                    self.awaited += request["machines"]
                    if self.template is None or self.template.ready:
                        self.launch_awaited()
                case "terminate":
                    ids = set(request["ids"])
                    self.awaited = [order for order in self.awaited if order["id"] not in ids]
                    self.kill([m for m in self.machines.values() if m.id in ids])
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
            self.launch_awaited()

    def drop_template(self) -> None:
        if self.template is not None:
            self.poll.unregister(self.template.fileno())
            self.template.close()
            self.template = None

    # --- machines -----------------------------------------------------------------------------------------------

    def launch_awaited(self) -> None:
        awaited, self.awaited = self.awaited, []
        for order in awaited:
            self.launch(order)

    def fork_machine(self, env: dict[str, str], control: socket.socket) -> int:
        """Fork the machine's fork server and return its pid. It leads its own process group."""
        if self.template is not None:
            try:
                return self.template.fork(env, [control.fileno()])
            except BrokenPipeError:
                self.drop_template()
                self.kill_orphans()  # a template that does not answer may have forked
        group = processes.fork(lambda: self.become_machine(env, control), control)
        try:
            os.setpgid(group, group)  # in both processes: whoever comes first
        except (PermissionError, ProcessLookupError):
            pass
        return group

    def become_machine(self, env: dict[str, str], control: socket.socket) -> NoReturn:
        os.setpgid(0, 0)
        os.environ.update(env)
        processes.give_back_descriptors()
        self.fork_server(control)

    def launch(self, order: dict[str, Any]) -> None:
        """Start a machine. One that cannot be started is reported as gone, with the cause, and the others go on."""
        directory = self.directory.parent / order["id"]  # <pool>/n<number>
        try:
            directory.mkdir(mode=0o700)
            (directory / "work").mkdir(mode=0o700)
            if self.work_mib is not None:
                processes.mount_small(directory / "work", self.work_mib)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                try:
                    group = self.fork_machine(order["env"], theirs)
                except OSError:
                    ours.close()
                    raise
        except OSError as error:  # too many processes, a full disk
            self.clear(directory)
            self.say(op="gone", id=order["id"], cause=f"could not be started ({error})")
            return
        self.machines[group] = machine = LocalMachine(order["id"], group, directory, {group: FORK_SERVER})
        with ours:
            executor = self.add_executor(machine, order, ours)
        if order["ssh"] is not None and not machine.ended:
            self.add_ssh_server(machine, order["ssh"])
        if not machine.ended:
            self.say(op="launched", id=machine.id, group=group, pid=executor)

    def add_executor(self, machine: LocalMachine, order: dict[str, Any], forks: socket.socket) -> int:
        def run(listener: socket.socket) -> None:
            os.environ.update(order["env"])  # it tells of the GPUs that its tasks see
            self.executor(
                listener,
                forks,
                directory=machine.directory,
                same_host=order["same_host"],
                accelerators=order["accelerators"],
                sharing=order["sharing"],
            )
            os._exit(0)

        return self.add_part(machine, EXECUTOR, EXECUTOR_SOCKET, run, forks)

    def add_ssh_server(self, machine: LocalMachine, ssh: dict[str, str]) -> None:
        def run(listener: socket.socket) -> None:
            # asyncssh looks for a library by means of gcc, which leaves its temporary files when it is killed with the
            # machine. This process starts nothing else.
            os.environ["PATH"] = os.devnull
            from . import ssh_server  # which takes long, and few pools want

            ssh_server.serve(listener, machine.directory, **ssh)

        self.add_part(machine, SSH_SERVER, SSH_SOCKET, run)

    def add_part(
        self,
        machine: LocalMachine,
        part: str,
        name: str,
        run: Callable[[socket.socket], None],
        *keep: socket.socket,
    ) -> int:
        """Fork a process of the machine that serves its socket ``name``. Where that cannot be, the machine is dead."""
        try:
            with listening(machine.directory / name) as listener:
                pid = processes.fork(lambda: run(listener), listener, *keep)
            machine.parts[pid] = part
            os.setpgid(pid, machine.group)  # exists as long as its leader is not collected
        except OSError as error:  # too many processes, no descriptor
            machine.part_ended(part, f"could not be started ({error})")
            return -1
        return pid

    def reap(self) -> None:
        """Collect the dead. What is no part of a machine was an orphan."""
        for pid, status in processes.ended_children():
            for machine in self.machines.values():
                if pid in machine.parts:
                    machine.part_ended(machine.parts[pid], processes.describe(status))

    def until_next_ms(self) -> float | None:
        times = [machine.bury_at for machine in self.machines.values() if machine.ended]
        if self.template is not None and not self.template.ready:
            times.append(self.late_at)
        return max(0.0, min(times) - time.monotonic()) * 1000 if times else None

    def bury(self) -> None:
        """Machines that are dead: end what is left of them and tell the client."""
        now = time.monotonic()
        for machine in list(self.machines.values()):
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
            self.machines.pop(machine.group, None)
            self.clear(machine.directory)
        while self.kill_orphans() and time.monotonic() < deadline:
            time.sleep(0.0005)

    def clear(self, directory: Path) -> None:
        if self.work_mib is not None:
            processes.unmount(directory / "work")
        shutil.rmtree(directory, ignore_errors=True)

    def anything_left(self, machine: LocalMachine) -> bool:
        self.reap()
        return processes.group_lives(machine.group)

    def kill_orphans(self) -> bool:
        """Kill orphans and return whether there were any: our children that are no part of a machine and no template.

        Dead orphans count as well. Fork servers are subreapers themselves, so an orphan reaches us only when its
        machine is dead. One that died between the look and the kill counts: its own children became ours just then.
        """
        self.reap()
        mine = {pid for machine in self.machines.values() for pid in machine.parts}
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
