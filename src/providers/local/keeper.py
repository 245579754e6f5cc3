"""The process that owns a local pool's machines: it forks them, notices their end, and leaves nothing when its client goes.

    keeper -+- fork server 0 -- workers       a machine is the process group of its fork server
            +- fork server 1 -- workers
            +- foundry -+- SSH server 0       forked from one process that imported asyncssh once,
                        +- SSH server 1       each in its machine's process group

Single-threaded and light: no asyncio, no asyncssh. It is a child subreaper, so whatever a dead machine leaves behind
becomes its child and is killed. Its control socket is its lease: when the client closes it, or dies, all of it ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # <linux/prctl.h>
KILL_DEADLINE_S = 5.0
FRAME_BYTES = 64 * 1024


class ForkServer(Protocol):
    def __call__(self, control: socket.socket) -> NoReturn: ...


@dataclass(slots=True)
class LocalMachine:
    """A fork server and an SSH server in one process group."""

    id: str
    group: int
    directory: Path


def main(control_fd: int, directory: str, fork_server: str, home: str) -> NoReturn:
    """Serve one pool until its client goes. ``fork_server`` and ``home`` are `providers.base.Embedding`'s names."""
    try:
        control = socket.socket(fileno=control_fd)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        keeper = Keeper(control, Path(directory), resolve(fork_server), home)
        keeper.serve()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the interpreter's own tidying costs 15 ms


class Keeper:
    """Machines by process group; answers one client."""

    def __init__(self, control: socket.socket, directory: Path, fork_server: ForkServer, home: str) -> None:
        self.control, self.directory, self.fork_server = control, directory, fork_server
        self.machines: dict[int, LocalMachine] = {}  # by process group, which is the fork server's pid
        self.unread = b""
        self.children, wake = socket.socketpair()
        wake.setblocking(False)
        self.children.setblocking(False)
        self._wake = wake
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # keeps pages shared with the children shared
        self.foundry, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.foundry_pid = fork(lambda: run_foundry(theirs, home), theirs)
        theirs.close()

    def serve(self) -> None:
        poll = select.poll()
        for sock in (self.control, self.children, self.foundry):
            poll.register(sock, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.children.fileno() in ready:
                self.children.recv(4096)
                self.reap()
            if self.control.fileno() in ready and not self.from_client():
                self.end()
                shutil.rmtree(self.directory, ignore_errors=True)
                return
            if self.foundry.fileno() in ready and not self.from_foundry():
                self.end()  # the client still reads our log
                return

    def end(self) -> None:
        """Kill everything and prove it."""
        machines = list(self.machines.values())
        self.kill(machines)
        self.foundry.close()
        signal_if_there(os.kill, self.foundry_pid)
        deadline = time.monotonic() + KILL_DEADLINE_S
        while self.reap_all() and time.monotonic() < deadline:
            time.sleep(0.001)

    # --- the client ---------------------------------------------------------------------------------------------

    def from_client(self) -> bool:
        """One read; False when the client is gone."""
        try:
            data = self.control.recv(FRAME_BYTES)
        except ConnectionResetError:
            return False
        if not data:
            return False
        *lines, self.unread = (self.unread + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            match request["op"]:
                case "launch":
                    for order in request["machines"]:
                        self.launch(order["id"], order, request)
                case "terminate":
                    ids = set(request["ids"])
                    self.kill([m for m in self.machines.values() if m.id in ids])
                    self.say(op="terminated", call=request["call"])
        return True

    def say(self, **message: object) -> None:
        try:
            self.control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass  # the client is gone; the next read says so

    # --- machines -----------------------------------------------------------------------------------------------

    def launch(self, machine_id: str, order: dict[str, Any], request: dict[str, Any]) -> None:
        directory = self.directory / machine_id
        (directory / "work").mkdir(mode=0o700, parents=True)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

        def start() -> None:
            os.setpgid(0, 0)
            os.environ.update(order["env"])
            self.fork_server(theirs)

        group = fork(start, theirs)
        theirs.close()
        try:
            os.setpgid(group, group)  # in both processes: whoever comes first
        except (PermissionError, ProcessLookupError):
            pass
        self.machines[group] = LocalMachine(machine_id, group, directory)
        orders = {"id": machine_id, "group": group, "directory": str(directory), "client_key": request["client_key"],
                  "accelerators": order["accelerators"]}  # fmt: skip
        try:
            socket.send_fds(self.foundry, [json.dumps(orders).encode()], [ours.fileno()])
        except OSError:
            pass  # the foundry is gone; its end of file says so
        ours.close()

    def from_foundry(self) -> bool:
        data = self.foundry.recv(FRAME_BYTES)
        if not data:
            self.say(
                op="failed", cause="the process that forks local machines died; its last words are in the keeper's log"
            )
            return False
        self.say(op="launched", **json.loads(data))
        return True

    def reap(self) -> None:
        """Collect the dead; a dead fork server is a dead machine, and what it leaves behind is ours to end."""
        for pid, status in self.reap_each():
            machine = self.machines.pop(pid, None)
            if machine is None:
                continue
            self.finish(machine)
            self.say(op="gone", id=machine.id, cause=describe(status))

    def reap_each(self) -> Iterable[tuple[int, int]]:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            yield pid, status

    def reap_all(self) -> bool:
        """Whether children are left."""
        self.kill_orphans()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def kill(self, machines: list[LocalMachine]) -> None:
        """End these machines and return when none of their processes is left."""
        for machine in machines:
            signal_if_there(os.killpg, machine.group)
        for machine in machines:
            if self.machines.pop(machine.group, None) is None:
                continue
            try:
                os.waitpid(machine.group, 0)
            except ChildProcessError:
                pass
            self.finish(machine)

    def finish(self, machine: LocalMachine) -> None:
        """What the fork server's death leaves: the SSH server, orphans, the directory. Bounded."""
        signal_if_there(os.killpg, machine.group)
        deadline = time.monotonic() + KILL_DEADLINE_S
        while (group_lives(machine.group) or self.kill_orphans()) and time.monotonic() < deadline:
            time.sleep(0.0005)
            for pid, status in self.reap_each():
                other = self.machines.pop(pid, None)
                if other is not None:  # died meanwhile by itself
                    self.finish(other)
                    self.say(op="gone", id=other.id, cause=describe(status))
        shutil.rmtree(machine.directory, ignore_errors=True)

    def kill_orphans(self) -> bool:
        """Whether there were any: living children of ours that are neither fork servers nor the foundry.

        Fork servers are subreapers themselves, so an orphan reaches us only when its machine is dead.
        """
        mine = {self.foundry_pid, *self.machines}
        orphans = [pid for pid in children_of(os.getpid()) if pid not in mine and not is_zombie(pid)]
        for pid in orphans:
            signal_if_there(os.kill, pid)
        return bool(orphans)


def run_foundry(control: socket.socket, home: str) -> None:
    from .foundry import foundry

    foundry(control, home)


def fork(run: Callable[[], object], *keep: socket.socket) -> int:
    """A child that dies with us and holds only its own sockets: an inherited end would hide every end of file."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        close_all_but({0, 1, 2, *(s.fileno() for s in keep)})
        run()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(1)


def close_all_but(kept: set[int]) -> None:
    for fd in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  the list itself is closed when it is complete
        if fd not in kept:
            try:
                os.close(fd)
            except OSError:  # the listing's own descriptor
                pass


def prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def resolve(name: str) -> Any:
    """The object at ``package.module:name``."""
    import importlib

    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def signal_if_there(send: Callable[[int, int], None], target: int) -> None:
    try:
        send(target, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def children_of(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return "ended by itself" if code == 0 else f"exited with status {code}"
