"""The programs that the processes of a local machine run: their arguments, and when the supervisor imports them."""

from __future__ import annotations

import gc
import importlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol


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
