"""A client's forked children hold none of its connections open: when it is killed, its hosts see the end of file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from outrider.engine.transport import ssh

pytestmark = pytest.mark.anyio
Serve = Callable[..., AbstractAsyncContextManager[Any]]
KEY = asyncssh.generate_private_key("ssh-ed25519")


def in_child(descriptor: int) -> str:
    """What a forked child has under this number."""
    mine, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(there, here(descriptor).encode())
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(mine) as said:
        what = said.read()
    os.waitpid(child, 0)
    return what


def here(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink())


async def test_a_forked_child_has_no_connection_to_a_host(serve: Serve) -> None:
    async with serve() as site:
        reached = await ssh.connect(site.machine(known_hosts=(site.known_hosts(),)), KEY)
        descriptor = reached.fileno()
        assert here(descriptor).startswith("socket:")
        assert in_child(descriptor) == os.devnull
        reached.abort()
        await reached.connection.wait_closed()
        async with asyncio.timeout(60):
            while reached.fileno() >= 0:
                await asyncio.sleep(0)


async def test_nor_one_to_the_first_host_on_the_way(serve: Serve) -> None:
    async with serve() as bastion, serve() as inner:
        known = inner.folder / "known"
        known.write_text("".join(f"[127.0.0.1]:{each.port} {each.public_key}\n" for each in (bastion, inner)))
        machine = inner.machine(known_hosts=(str(known),), jump=f"ml@127.0.0.1:{bastion.port}")
        reached = await ssh.connect(machine, KEY)
        assert here(reached.fileno()).startswith("socket:")
        assert in_child(reached.fileno()) == os.devnull
        reached.abort()
