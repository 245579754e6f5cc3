"""The executor server's process of a local node: see `providers.base.EntryPoints.executor`."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Sequence
from pathlib import Path

from . import limits
from .server import ExecutorServer


def serve(
    listener: socket.socket,
    forks: socket.socket,
    *,
    directory: Path,
    same_host: bool,
    accelerators: Sequence[tuple[str, float]],
) -> None:
    """Serve the clients that connect to ``listener`` until the executor ends."""
    limits.raise_descriptors()
    gc.set_threshold(50_000, 50, 100)  # no user code here: what is collected often is what tasks pass through
    asyncio.run(_serve(listener, forks, directory, same_host, accelerators))


async def _serve(
    listener: socket.socket,
    forks: socket.socket,
    directory: Path,
    same_host: bool,
    accelerators: Sequence[tuple[str, float]],
) -> None:
    ended = asyncio.Event()
    server = ExecutorServer(
        forks,
        directory=directory,
        address="127.0.0.1",
        same_host=same_host,
        ended=ended.set,
        accelerators=accelerators,
    )
    await server.start()
    await server.listen(listener)
    await ended.wait()
    await server.close()
