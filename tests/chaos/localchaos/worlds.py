"""Broadcasts whose ranks wait for each other, as in data-parallel training, without a framework: over sockets alone."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from outrider import InstanceInfo, checkpoint, compute, instance_info

from .tasks import LOSSES

NUMBER = struct.Struct("!q")
AGREE_S = 60.0  # for ranks to wait for one that could not write what it has to say
MEET_S = 120.0  # for ranks to find each other, and to answer each other


class PeerGone(Exception):
    """Another rank of this world is not there any more."""


class TornError(Exception):
    """What was loaded was never saved like that, or is older than what was told to be complete."""


@compute(retries=LOSSES, on_loss="restart")
def adds_up(steps: int, pause_s: float) -> tuple[int, int]:
    """Its rank, and the sum that `expected` knows."""
    info = instance_info()
    value = 0
    with Meeting(info) as meeting:
        for step in range(1, steps + 1):
            value += meeting.sum(info.rank + step)
            time.sleep(pause_s)
    return info.rank, value


@compute(retries=LOSSES, on_loss="restart")
def trains(run: str, steps: int, pause_s: float, marks: str) -> tuple[int, int]:
    """The same with checkpoints: it goes on where it was saved, and what it loads is as it was saved."""
    info = instance_info()
    told = [int(mark.name) for mark in Path(marks).iterdir()]
    saved = checkpoint(run, every=3, timeout=AGREE_S)
    start, value = saved.load()
    value = value or 0
    if value != expected(start, info.world_size):
        raise TornError(f"{value} was loaded for step {start}, not {expected(start, info.world_size)}")
    if told and start < max(told):
        raise TornError(f"step {start} was loaded, after step {max(told)} was complete")
    with Meeting(info) as meeting:
        for step in range(start + 1, steps + 1):
            value += meeting.sum(info.rank + step)
            time.sleep(pause_s)
            if saved.save(step, value) and step % 2 == 0:
                saved.wait()
                (Path(marks) / str(step)).touch()
    return info.rank, value


def expected(steps: int, world: int) -> int:
    return sum(rank + step for step in range(1, steps + 1) for rank in range(world))


class Meeting:
    """All ranks of a generation: rank 0 adds up what the others send, and tells them."""

    def __init__(self, info: InstanceInfo) -> None:
        self._info = info
        self._others: list[socket.socket] = []

    def __enter__(self) -> Self:
        address = (self._info.head_addr, self._info.head_port)
        self._others = _gathered(address, self._info.world_size - 1) if self._info.is_head else [_reached(address)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for sock in self._others:
            sock.close()

    def sum(self, mine: int) -> int:
        try:
            if not self._info.is_head:
                self._others[0].sendall(NUMBER.pack(mine))
                return _number(self._others[0])
            result = mine + sum(_number(sock) for sock in self._others)
            for sock in self._others:
                sock.sendall(NUMBER.pack(result))
        except OSError as error:
            raise PeerGone(str(error)) from error
        return result


def _gathered(address: tuple[str, int], count: int) -> list[socket.socket]:
    with socket.create_server(address) as server:
        server.settimeout(MEET_S)
        try:
            found = [server.accept()[0] for _ in range(count)]
        except TimeoutError as error:
            raise PeerGone("not all ranks came") from error
    for sock in found:
        sock.settimeout(MEET_S)
    return found


def _reached(address: tuple[str, int]) -> socket.socket:
    until = time.monotonic() + MEET_S
    while True:
        try:
            return socket.create_connection(address, MEET_S)
        except ConnectionError as error:  # it does not listen yet
            if time.monotonic() > until:
                raise PeerGone(str(error)) from error
            time.sleep(0.02)


def _number(sock: socket.socket) -> int:
    data = b""
    while len(data) < NUMBER.size:
        more = sock.recv(NUMBER.size - len(data))
        if not more:
            raise PeerGone("it closed its end")
        data += more
    number: int = NUMBER.unpack(data)[0]
    return number
