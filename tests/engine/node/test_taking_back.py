"""What lies unread in a worker's pipe is taken back as a whole, or not at all."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import pipe as pipes
from outrider.engine.node import slots
from outrider.engine.wire import messages as m


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, far:
        yield ours, far


def forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def test_a_worker_receives_nothing_of_what_is_taken_back(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, far = pair
    with pipes.taking_back(far) as may:
        assert may
        pipes.send(ours, b"definition")
        pid = forked(lambda: pipes.send(far, pipes.receive_next(far)[0]))
        pipes.send(ours, b"task")
        while not _waits_for_the_lock(pid):
            os.sched_yield()
        taken = [pipes.receive(far, socket.MSG_DONTWAIT)[0] for _ in range(2)]
    pipes.send(ours, b"another task")
    assert pipes.receive(ours) == (b"another task", [])
    os.waitpid(pid, 0)
    assert taken == [b"definition", b"task"]


def _waits_for_the_lock(pid: int) -> bool:
    """Return whether the process waits, as /proc/locks says, for a record lock."""
    with open("/proc/locks") as locks:  # noqa: PTH123
        return any("->" in line and f" {pid} " in line for line in locks)


def test_what_a_stopped_worker_is_about_to_receive_is_left_to_it(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, far = pair
    monkeypatch.setattr(pipes, "LOCK_TRIES", 2)

    def hold() -> None:
        with pipes.taking_back(far):
            pipes.send(far, b"held")
            signal.pause()

    pid = forked(hold)
    assert pipes.receive(ours)[0] == b"held"
    pipes.send(ours, b"task")
    with pipes.taking_back(far) as may:
        assert not may
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with pipes.taking_back(far) as may:
        assert may


def _wait_for(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.001)


@pytest.mark.anyio
async def test_what_a_stopped_worker_keeps_counts_as_begun_and_runs_there_once(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can tell whether the worker has received it: it is not returned, even if it waits behind a long task."""
    monkeypatch.setattr(pipes, "LOCK_TRIES", 2)
    monkeypatch.setattr(slots, "STALL_S", 600.0)
    client = await make()
    first = client.run(_wait_for, tmp_path / "gate", flags=int(m.RunFlag.ANNOUNCE))
    await client.until(lambda: client.of(first, m.Started))
    second = client.run(os.getpid)
    await client.turn()
    (connection,) = client.server._workers._connections.values()
    with _held(connection._far):
        client.send(m.Recall((second,)))
        assert await client.expect(m.Returned) == m.Returned(())
    (tmp_path / "gate").touch()
    await client.answer(first)
    assert isinstance(await client.answer(second), m.Done)


@contextmanager
def _held(far: socket.socket) -> Iterator[None]:
    """Another process has the lock meanwhile, as a worker that was stopped then."""
    told, tells = os.pipe()

    def hold() -> None:
        with pipes.taking_back(far):
            os.write(tells, b"held")
            signal.pause()

    pid = forked(hold)
    try:
        assert os.read(told, 4) == b"held"
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
        os.close(tells)
