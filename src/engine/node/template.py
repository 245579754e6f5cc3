"""The template: a process that imports modules once, and then forks processes, which have the modules already.

    parent -+- template      (an import of torch takes 2 s of a core; a fork of a process that has it, 15 ms)
            +- child         (a fork of a fork of the template)

The template forks twice: the process between the two forks ends at once, so that the child becomes a child of the
parent (which must be a child subreaper). Then the parent is notified of the child's end and adopts the child's orphans,
as if it had forked the child itself. A template imports and forks, but runs no user code. An imported library may have
started threads, if it restores them after a fork, as OpenBLAS does. If a template cannot import a module, or ends, the
parent forks the children itself, and tasks that use the module get its import error.
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
IMPORT_S = 30.0  # time limit for the imports; after that, each process imports the modules itself
_FORK_S = 10.0  # time limit for the answer to a fork request; after that, the template is not used any more

Become = Callable[[Any, list[int]], NoReturn]  # called with a fork request and its descriptors


class Template:
    """A template process, as its parent uses it. ``ready``: whether all modules are imported, so that `fork` works."""

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
            become: called in each child, with the request and the descriptors that were passed to `fork`.
            settle_in: called in the template before the imports.
            lead: whether each child becomes the leader of a process group.

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
        """Read the template's message that it is ready. Raises BrokenPipeError if the template has ended."""
        if self._answer() != _READY:
            raise BrokenPipeError
        self.ready = True

    def fork(self, order: object, fds: Sequence[int]) -> int:
        """Let the template fork a child, which calls ``become``; return the child's pid.

        The child becomes a child of this process shortly afterwards.

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
        """Return the template's answer; b"" if the template has ended, or does not answer in time."""
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
        """Execute one fork request. Return False if the template must end: its parent or a fork of it has ended."""
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
            # The process between the forks was killed, perhaps before it answered this request. Then the parent could
            # take the answer to the next request for the answer to this one.
            if os.waitpid(between, 0)[1]:
                return False
        except OSError as error:
            self._reply(0, str(error))
        for fd in fds:
            os.close(fd)
        return True

    def _fork_again(self, order: Any, fds: list[int]) -> NoReturn:
        """Fork the child, in the process between the two forks.

        This process sends the child's pid, because no other process knows it. Before that, it creates the child's
        process group.
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
