"""The programs of a machine: what they are called with, and when the supervisor imports them."""

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
    """The process that `EntryPoints.template` makes. Each of its methods raises BrokenPipeError when it has ended."""

    pid: int
    ready: bool

    def fileno(self) -> int: ...
    def on_readable(self) -> None: ...
    def fork(self, order: object, fds: Sequence[int]) -> int: ...
    def close(self) -> None: ...


class ForkServerCode:
    """The code of fork servers and workers. It is imported while the supervisor waits for its client; if it need not
    wait, when the first executors have been forked, which do without it: they start on another core meanwhile.
    """

    def __init__(self, fork_server: str, shared: Sequence[str]) -> None:
        self._fork_server, self._shared = fork_server, shared
        self._serve: ForkServer | None = None

    def load(self) -> ForkServer:
        """Import it, the first time, and return the program of a fork server."""
        if self._serve is not None:
            return self._serve
        gc.disable()  # it would find nothing
        for module in self._shared:
            importlib.import_module(module)
        serve: ForkServer = resolve(self._fork_server)
        share_memory()
        self._serve = serve
        return serve


def share_memory() -> None:
    """Keep the pages that are shared with the children shared: no collector looks at what is here now."""
    gc.freeze()
    gc.enable()


def resolve(name: str) -> Any:
    """The object at ``package.module:name``."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)
