"""The process that local machines' SSH servers are forked from: it imports asyncssh once for all of them."""

from __future__ import annotations

import ctypes.util
import gc
import json
import os
import resource
import select
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from . import processes


def foundry(control: socket.socket, make_home: Callable[..., Any]) -> NoReturn:
    """Import once, then fork an SSH server for each order, and tell when one has ended.

    An order is {id, group, directory, client_key, accelerators} with the socket of the machine's fork server.
    """
    import_asyncssh()
    Foundry(control, make_home).serve()


class Foundry:
    def __init__(self, control: socket.socket, make_home: Callable[..., Any]) -> None:
        self.control, self.make_home = control, make_home
        self.servers: dict[int, str] = {}  # pid -> machine
        self.children = processes.wake_on_child_death()
        gc.collect()
        gc.freeze()

    def serve(self) -> NoReturn:
        poll = select.poll()
        for sock in (self.control, self.children):
            poll.register(sock, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self.children.fileno() in ready:
                self.children.recv(4096)
                self.reap()
            if self.control.fileno() in ready:
                data, forks = processes.receive(self.control, processes.FRAME_BYTES)
                if not data:
                    os._exit(0)
                self.ordered(json.loads(data), forks)

    def ordered(self, order: dict[str, Any], forks: int | None) -> None:
        if forks is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            story = f"the process that forks SSH servers has no descriptors left, its limit is {limit}: raise ulimit -n"
            self.say(op="ended", id=order["id"], how=f"could not be started ({story})")
            return
        self.start(order, socket.socket(fileno=forks))

    def start(self, order: dict[str, Any], forks: socket.socket) -> None:
        from . import server

        try:
            with forks:
                listener, host_key, public = server.prepare(Path(order["directory"]))
                with listener:
                    run = lambda: server.serve(order, listener, host_key, forks, self.make_home)  # noqa: E731
                    pid = processes.fork(run, listener, forks)
        except OSError as error:  # too many processes; also when the machine has died meanwhile, the keeper knows which
            self.say(op="ended", id=order["id"], how=f"could not be started ({error})")
            return
        self.servers[pid] = order["id"]
        self.say(op="launched", id=order["id"], group=order["group"], pid=pid, host_key=public)

    def reap(self) -> None:
        for pid, status in processes.ended_children():
            self.say(op="ended", id=self.servers.pop(pid), how=processes.describe(status))

    def say(self, **message: object) -> None:
        self.control.send(json.dumps(message).encode())


def import_asyncssh() -> None:
    """asyncssh without its search for liboqs, which runs ldconfig, gcc and ld: 16-20 ms (straced).

    What it would find is nothing that we use, and the process is ours to change.
    """
    found, ctypes.util.find_library = ctypes.util.find_library, lambda _: None  # type: ignore[assignment]
    try:
        import asyncssh  # noqa: F401
    finally:
        ctypes.util.find_library = found
