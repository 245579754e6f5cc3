"""The agent of fault injection in a task's process: counts the task's steps, can pause it, and can hold the GIL.

A step is a call of `outrider.testing.step`, of ``Checkpoint.save``, or of `should_stop`. A loop may call several of
them in each iteration: only the function that was called most often counts. The count of each attempt begins at 0.

Agent and client exchange lines of JSON over an abstract unix socket, which leaves no file behind:

    -> {"rank": 0, "world": 4, "job": 1, "generation": 1, "attempt": 1}        the kernel reports the pid
    <- {"watch": [20]}          pause at these steps
    -> {"began": true}          the task has made its first step
    -> {"step": 20}             the task is paused at this step
    <- {"go": 20}               continue
    <- {"gil": 70.0}            hold the interpreter lock for 70 s, or until the client closes the connection
    -> {"steps": 143}           the task has ended after 143 steps
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from ...engine.api.plugin import Plugin
from ...engine.node import context
from ...lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ...engine.api.instance import InstanceInfo

CONNECT_S = 10.0
POLLRDHUP = 0x2000  # <poll.h>: the other end has closed


@dataclass(frozen=True)
class Agents(Plugin):
    """A plugin that starts an agent in every task submitted during fault injection; after that it does nothing."""

    address: str = ""

    name: ClassVar[str] = "chaos"

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        task = context.current()
        agent = None if task is None else _reached(self.address, info)
        if task is None or agent is None:
            yield
            return
        context.on_step[task] = agent.step
        try:
            yield
        finally:
            del context.on_step[task]
            agent.close()


class Agent:
    def __init__(self, sock: socket.socket, info: InstanceInfo) -> None:
        self._sock = sock
        self._file = sock.makefile("rb")
        self._pid = os.getpid()
        self._counts: Counter[str] = Counter()
        self._steps = 0
        self._lock = threading.Lock()
        self._gone = threading.Event()
        self._send(
            rank=info.rank, world=info.world_size, job=info.job, generation=info.generation, attempt=info.attempt
        )
        self._watched = {step: threading.Event() for step in json.loads(self._file.readline())["watch"]}
        sock.settimeout(None)
        threading.Thread(target=self._listen, daemon=True, name="outrider-chaos").start()

    def step(self, kind: str) -> None:
        if os.getpid() != self._pid:  # this process is a child that the task has forked
            return
        with self._lock:
            self._counts[kind] += 1
            is_next = self._counts[kind] > self._steps
            self._steps = max(self._steps, self._counts[kind])
            steps = self._steps
        if not is_next or self._gone.is_set():
            return
        with suppress(OSError):
            if steps == 1:
                self._send(began=True)
            if steps in self._watched:
                self._send(step=steps)
                self._watched[steps].wait()

    def close(self) -> None:
        with suppress(OSError):
            self._send(steps=self._steps)
            self._sock.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        with suppress(OSError, ValueError):
            for line in self._file:
                match json.loads(line):
                    case {"go": step}:
                        self._watched[step].set()
                    case {"gil": seconds}:
                        hold_gil(seconds, self._sock.fileno())
        self._gone.set()
        for event in self._watched.values():
            event.set()
        self._file.close()
        self._sock.close()

    def _send(self, **message: object) -> None:
        self._sock.sendall(json.dumps(message).encode() + b"\n")


class _Poll(ctypes.Structure):
    _fields_: ClassVar = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def hold_gil(seconds: float, until_closed: int) -> None:
    """Hold the interpreter lock (GIL) for ``seconds``, or until the peer closes the socket ``until_closed`` (its fd).

    `ctypes.PyDLL`, unlike `ctypes.CDLL`, does not release the GIL during a call.
    """
    polled = _Poll(until_closed, POLLRDHUP, 0)
    poll: Any = ctypes.PyDLL(None).poll
    poll(ctypes.byref(polled), 1, int(seconds * 1000))


def _reached(address: str, info: InstanceInfo) -> Agent | None:
    """Connect to the fault injector at ``address``. Return None if fault injection has ended."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(CONNECT_S)
    try:
        sock.connect(f"\0{address}")
        agent = Agent(sock, info)
    except (OSError, ValueError, LookupError) as error:  # the injector closed the socket before or during its answer
        sock.close()
        if isinstance(error, TimeoutError):
            print(f"outrider: no chaos here: the program did not answer within {CONNECT_S:g} s", file=sys.stderr)
        return None
    return agent
