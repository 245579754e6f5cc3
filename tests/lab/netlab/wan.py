"""Distance: latency, jitter and loss on a host's link, by a queue between two TAPs (many kernels lack ``tc netem``)."""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import threading
import time
from collections import deque

TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES = 65536


class Wan:
    """Carries frames between two links with a delay. Its figures may be changed while it runs."""

    def __init__(self, *, delay_s: float, jitter_s: float = 0.0, loss: float = 0.0, seed: int = 0) -> None:
        """``delay_s``: one way, so a round trip takes twice that; ``loss``: the share of frames, each way."""
        self.delay_s, self.jitter_s, self.loss = delay_s, jitter_s, loss
        self._chance = random.Random(seed)
        self._ends: list[int] = []
        self._wake, self._stop = os.pipe()
        self._thread = threading.Thread(target=self._carry, name="wan", daemon=True)

    def connect(self, one: str, other: str) -> None:
        """Make the two TAPs, by these names, in this network namespace; they may be moved to another afterwards."""
        self._ends = [_tap(one), _tap(other)]
        self._thread.start()

    def close(self) -> None:
        """The TAPs go with their descriptors."""
        os.close(self._stop)
        if self._thread.ident is not None:
            self._thread.join()
        for fd in (self._wake, *self._ends):
            os.close(fd)

    def _carry(self) -> None:
        """Frames leave in the order in which they came: what jitters on a real path is the queue, not the order."""
        waiting: dict[int, deque[tuple[float, bytes]]] = {fd: deque() for fd in self._ends}  # by where they go
        across = dict(zip(self._ends, reversed(self._ends), strict=True))
        with selectors.DefaultSelector() as selector:
            for fd in (self._wake, *self._ends):
                selector.register(fd, selectors.EVENT_READ)
            while True:
                due = min((queue[0][0] for queue in waiting.values() if queue), default=None)
                timeout = None if due is None else max(0.0, due - time.monotonic())
                for key, _ in selector.select(timeout):
                    if key.fd == self._wake:
                        return
                    frame = self._read(key.fd)
                    if frame is None:
                        selector.unregister(key.fd)  # its link is gone: a host that lost its power
                    elif self._chance.random() >= self.loss:
                        queue = waiting[across[key.fd]]
                        leaves = time.monotonic() + self.delay_s + self._chance.random() * self.jitter_s
                        queue.append((max(leaves, queue[-1][0]) if queue else leaves, frame))
                now = time.monotonic()
                for fd, queue in waiting.items():
                    while queue and queue[0][0] <= now:
                        self._write(fd, queue.popleft()[1])

    @staticmethod
    def _read(fd: int) -> bytes | None:
        try:
            return os.read(fd, FRAME_BYTES)
        except OSError:
            return None

    @staticmethod
    def _write(fd: int, frame: bytes) -> None:
        try:
            os.write(fd, frame)
        except OSError:
            pass  # the link is down or gone: the frame is lost, as on a wire


def _tap(name: str) -> int:
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    except OSError:
        os.close(fd)
        raise
    return fd
