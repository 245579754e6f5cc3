"""Commands over a connection: what goes in, what comes out, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncssh
import pytest

from outrider.engine.transport import ssh
from outrider.engine.transport.ssh import LAST_BYTES, RemoteShell

pytestmark = pytest.mark.anyio
Serve = Callable[..., AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def shell(serve: Serve) -> AsyncIterator[tuple[RemoteShell, ssh.Connected]]:
    async with serve() as site:
        reached = await ssh.connect(
            site.machine(known_hosts=(site.known_hosts(),)), asyncssh.generate_private_key("ssh-ed25519")
        )
        try:
            yield RemoteShell(reached.connection), reached
        finally:
            reached.abort()


async def test_arguments_are_data(serve: Serve) -> None:
    words = ["$HOME", "a b", "'", '"', ";true", "*", "\\", "\n", ""]
    async with shell(serve) as (run, _):
        ended = await run.run(["printf", "<%s>", *words])
    assert ended.stdout.decode() == "".join(f"<{word}>" for word in words)
    assert (ended.status, ended.stderr) == (0, b"")


async def test_input_of_any_size_goes_in_and_what_comes_out_can_be_watched(serve: Serve) -> None:
    data = bytes(range(256)) * 16_000
    pieces: list[bytes] = []
    async with shell(serve) as (run, _):
        ended = await run.run(["cat"], stdin=data, output=pieces.append)
    assert b"".join(pieces) == data
    assert ended.stdout == b""
    assert ended.status == 0


async def test_input_may_come_in_pieces(serve: Serve) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield f"{number}\n".encode()

    async with shell(serve) as (run, _):
        assert (await run.run(["sort", "-r"], stdin=pieces())).stdout == b"2\n1\n0\n"


async def test_a_command_that_reads_nothing_ends_all_the_same(serve: Serve) -> None:
    async with shell(serve) as (run, _):
        ended = await run.run(["sh", "-c", "echo no >&2; exit 3"], stdin=b"x" * 4_000_000)
    assert (ended.status, ended.stderr) == (3, b"no\n")


async def test_of_what_nobody_watches_the_end_is_kept(serve: Serve) -> None:
    async with shell(serve) as (run, _):
        ended = await run.run(["sh", "-c", "seq 1 200000"])
    assert ended.stdout.endswith(b"199999\n200000\n")
    assert len(ended.stdout) <= 2 * LAST_BYTES


async def test_a_lost_connection_is_no_exit(serve: Serve) -> None:
    async with shell(serve) as (run, reached):
        waiting = asyncio.ensure_future(run.run(["cat"], stdin=_never()))
        await asyncio.sleep(0.05)
        reached.abort()
        with pytest.raises(ConnectionError):
            await waiting
        with pytest.raises(ConnectionError):
            await run.run(["true"])


async def test_what_the_inputs_iterator_raises_is_raised(serve: Serve) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"1\n"
        raise FileNotFoundError("gone meanwhile")

    async with shell(serve) as (run, _):
        with pytest.raises(FileNotFoundError, match="gone meanwhile"):
            await run.run(["cat"], stdin=broken())


async def test_cancelling_ends_the_commands_input(serve: Serve, tmp_path: Any) -> None:
    mark = tmp_path / "ended"
    async with shell(serve) as (run, _):
        begun = asyncio.Event()
        waiting = asyncio.ensure_future(
            run.run(["sh", "-c", f"echo begun; cat; touch {mark}"], stdin=_never(), output=lambda _: begun.set())
        )
        await begun.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with asyncio.timeout(60):
            while not mark.exists():
                await asyncio.sleep(0.01)


async def _never() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""
