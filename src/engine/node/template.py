"""A process that imports modules once, and forks processes that already have them.

    parent -+- template      importing torch takes 2 s of a core; a fork that has it, 15 ms
            +- child         forked by the template, twice

The process between the two forks ends, so that the parent, which must be a child subreaper, adopts the child: the
parent is notified of the child's end and adopts its orphans, as if it had forked the child itself. A template imports
and forks, and runs no user code. Libraries may have started threads by then, if these survive a fork, as those of
OpenBLAS do. If a template cannot import a module, or ends, the parent forks by itself, and tasks that use the module
get its import error.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

import msgpack

from . import limits, process

_READY = b"+"
_MESSAGE_BYTES = 64 * 1024
IMPORT_S = 30.0  # after this time, the wait for the template ends: each process imports for itself
_FORK_S = 10.0  # time limit for an answer; after that, the template is not used any more

Become = Callable[[Any, list[int]], NoReturn]  # (order, descriptors)


class Template:
    """The parent's end of a template process. ``ready``: all modules are imported, and `fork` may be called."""

    def __init__(
        self,
        modules: Sequence[str],
        become: Become,
        *,
        settle_in: Callable[[], None] = lambda: None,
        lead: bool = False,
    ) -> None:
        """Fork the template.

        Args:
            modules: the modules to import.
            become: called in each child, with the order and the descriptors of `fork`.
            settle_in: called before the imports.
            lead: whether each child leads a process group.

        Raises:
            OSError: the template cannot be forked.
        """
        self.ready = False
        parent = os.getpid()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self.pid = os.fork()
            except OSError:
                self._control.close()
                raise
            if self.pid == 0:
                _Server(theirs, become, lead=lead).run(parent, modules, settle_in)

    def fileno(self) -> int:
        return self._control.fileno()

    def on_readable(self) -> None:
        """Read the template's message, which must be that it is ready.

        Raises BrokenPipeError if the template has ended.
        """
        if self._answer() != _READY:
            raise BrokenPipeError
        self.ready = True

    def fork(self, order: object, fds: Sequence[int]) -> int:
        """Fork a child that executes the order; return its pid. The parent adopts the child at once, or shortly after.

        Raises:
            BrokenPipeError: the template has ended, or does not answer: call `close`.
            OSError: there are too many processes, or there is too little memory.
        """
        self._control.settimeout(_FORK_S)
        try:
            socket.send_fds(self._control, [cast("bytes", msgpack.packb(order))], fds)
        except OSError as error:
            raise BrokenPipeError from error
        answer = self._answer()
        if not answer:
            raise BrokenPipeError
        pid, detail = msgpack.unpackb(answer)
        if detail:
            raise OSError(detail)
        return cast("int", pid)

    def close(self) -> None:
        self._control.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def _answer(self) -> bytes:
        """Return the template's answer; empty if it has ended, or does not answer in time."""
        try:
            return self._control.recv(_MESSAGE_BYTES)
        except OSError:
            return b""


class _Server:
    def __init__(self, control: socket.socket, become: Become, *, lead: bool) -> None:
        self._control, self._become, self._lead = control, become, lead

    def run(self, parent: int, modules: Sequence[str], settle_in: Callable[[], None]) -> NoReturn:
        try:
            process.begin_child(parent)
            process.close_all_but({0, 1, 2, self._control.fileno()})
            settle_in()
            for module in modules:
                importlib.import_module(module)
            gc.collect()
            gc.freeze()
            self._control.send(_READY)
            while self._obey():
                pass
        except ImportError as error:
            print(f"outrider: not imported for all, but by each: {error}", file=sys.stderr, flush=True)
        except BaseException:  # noqa: BLE001 - the child must not continue as its parent
            traceback.print_exc()
        finally:
            os._exit(1)

    def _obey(self) -> bool:
        """Execute one order. Return False if the parent has closed its end, or answers could be confused."""
        data, fds = limits.receive(self._control, _MESSAGE_BYTES, 5)
        if not data:
            return False
        if fds is None:
            self._reply(0, limits.story())
            return True
        try:
            between = os.fork()
            if between == 0:
                self._fork_again(msgpack.unpackb(data), fds)
            # the process was killed, perhaps before it answered: the next answer could be mistaken for its answer
            if os.waitpid(between, 0)[1]:
                return False
        except OSError as error:
            self._reply(0, str(error))
        for fd in fds:
            os.close(fd)
        return True

    def _fork_again(self, order: Any, fds: list[int]) -> NoReturn:
        """Fork the child. This runs in the process between the two forks.

        Only this process knows the child's pid, and the child's process group must exist before the pid is sent.
        """
        between = os.getpid()
        try:
            pid = os.fork()
            if pid == 0:
                while os.getppid() == between:
                    time.sleep(0.0002)
                self._become(order, fds)
            if self._lead:
                os.setpgid(pid, pid)
            self._reply(pid, "")
        except OSError as error:
            self._reply(0, str(error))
        finally:
            os._exit(0)

    def _reply(self, pid: int, detail: str) -> None:
        self._control.send(cast("bytes", msgpack.packb([pid, detail])))
