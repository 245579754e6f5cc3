"""The way to an executor on this computer: its unix socket, whose two ends make sure that one user has both."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import client_channels
from outrider.engine.transport import route as unix_route
from outrider.engine.transport.channels import Control
from outrider.engine.transport.route import UnixRoute
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import encode
from outrider.providers.base import Address, Machine, MachineId
from outrider.testing.provider_contract import cancel_at_every_step

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "executor.sock"))
        listening.listen()
        yield listening


@pytest.fixture
def route(listener: socket.socket) -> UnixRoute:
    path = listener.getsockname()
    machine = Machine(MachineId("p/n0"), Address(path=path), "", executor_socket=path, ssh=False)
    return UnixRoute(machine, lambda: None)


class Greeting:
    """In place of the executor server."""

    def __init__(self) -> None:
        self.hellos: list[wire.Hello] = []

    def greeted(self, transport: asyncio.Transport, hello: wire.Hello, rest: bytes) -> None:
        self.hellos.append(hello)
        transport.write(encode(wire.Refused("enough", {})))


HELLO = encode(wire.Hello(1, "session", 0, "3.11", "3", 60.0, {}))


def test_the_user_at_the_other_end_is_known() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert client_channels.peer_uid(one) == os.geteuid()


async def test_where_another_user_listens_nothing_is_said(
    route: UnixRoute, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unix_route, "peer_uid", lambda _: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="and not the user of this program"):
        await route.reach(again=False)
    assert not route.reached
    accepted, _ = listener.accept()
    with accepted:
        assert accepted.recv(1) == b""


@pytest.mark.parametrize(("uid", "heard"), [(os.geteuid(), True), (0, True), (os.geteuid() + 1, False)])
async def test_only_the_executors_own_user_and_root_are_heard(
    route: UnixRoute, listener: socket.socket, monkeypatch: pytest.MonkeyPatch, uid: int, heard: bool
) -> None:
    monkeypatch.setattr(client_channels, "peer_uid", lambda _: uid)
    greeting: Any = Greeting()
    serving = await asyncio.get_running_loop().create_unix_server(
        lambda: client_channels.NewChannel(greeting.greeted, Any),
        sock=listener,  # type: ignore[arg-type]
    )
    control = Control()
    await route.reach(again=False)
    await route.open_channel(control)
    control.write(HELLO)
    if heard:
        assert await control.first == wire.Refused("enough", {})
    else:
        with pytest.raises(ConnectionResetError):
            await control.first
    assert len(greeting.hellos) == heard
    route.abort()
    serving.close()


async def test_cancelled_at_any_await_it_closes_its_sockets(route: UnixRoute) -> None:
    async def use() -> None:
        try:
            await route.reach(again=False)
            await route.open_channel(Control())
            await route.open_channel(Control())
        finally:
            route.abort()

    async def nothing_is_left(step: int) -> None:
        await asyncio.sleep(0)
        gc.collect()

    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what earlier tests left is not ours
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await cancel_at_every_step(use, nothing_is_left) >= 2


async def test_a_forked_child_has_no_connection_to_a_node(route: UnixRoute) -> None:
    control = Control()
    await route.reach(again=False)
    await route.open_channel(control)
    carrier: Any = control._carrier
    link = f"/proc/self/fd/{carrier.get_extra_info('socket').fileno()}"
    assert os.readlink(link).startswith("socket:")  # noqa: PTH115
    mine, there = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(there, os.readlink(link).encode())  # noqa: PTH115
        finally:
            os._exit(0)
    os.close(there)
    with os.fdopen(mine) as said:
        assert said.read() == os.devnull
    os.waitpid(child, 0)  # noqa: ASYNC222 - it has said all, and ends
    route.abort()


async def test_a_channel_that_is_opened_after_the_end_of_its_connection_is_an_error(route: UnixRoute) -> None:
    await route.reach(again=False)
    route.abort()
    with pytest.raises(ConnectionResetError):
        await route.open_channel(Control())


async def test_where_nobody_listens_any_more_another_channel_is_tried_again(
    route: UnixRoute, listener: socket.socket
) -> None:
    """By whoever moves the blob: see `NodeLink._across_losses`."""
    await route.reach(again=False)
    await route.open_channel(Control())
    listener.close()
    with pytest.raises(ConnectionResetError):
        await route.open_channel(Control())
    route.abort()


async def test_a_channel_that_has_ended_by_itself_can_be_let_go(route: UnixRoute, listener: socket.socket) -> None:
    """asyncio fails to abort a transport that has closed when it had written the rest of its buffer."""
    await route.reach(again=False)
    control = Control()
    await route.open_channel(control)
    accepted, _ = listener.accept()
    with accepted:
        control.write(bytes(4_000_000))  # more than the socket takes at once
        accepted.shutdown(socket.SHUT_WR)
        reading = asyncio.to_thread(lambda: sum(iter(lambda: len(accepted.recv(1 << 20)), 0)))
        assert await reading == 4_000_000
    with pytest.raises(ConnectionResetError):
        await control.first
    route.abort()
