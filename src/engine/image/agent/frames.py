"""What client and agent say to each other: a line of JSON, to the agent with so many bytes behind it.

To the agent: ``plan`` first; then a ``file`` (``sha256``, its bytes, ``packed`` by zlib where that is smaller) for each
that it asked for, and ``wheels`` where it needs those. From the agent: ``hello``; ``phase`` for whoever watches;
``need``; in the end ``result`` or ``failed``. When the client's end closes before that, the agent ends all it started.

The agent may run on a Python as old as 3.8.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, BinaryIO

VERSION = 1
LINE_BYTES = 1 << 20  # that the agent may say at a time; its longest is the end of a log
Frame = dict  # of names to JSON's values


def encode(kind: str, body: bytes = b"", **facts: Any) -> bytes:
    """One frame to the agent."""
    head = json.dumps({"is": kind, "bytes": len(body), **facts}, separators=(",", ":"))
    return head.encode() + b"\n" + body


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """The next frame's head, its body unread; None: the client closed."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    return head


def say(fd: int, kind: str, **facts: Any) -> None:
    """One frame from the agent."""
    data = (json.dumps({"is": kind, **facts}, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(fd, data) :]


class Lines:
    """Frames from the agent, out of what arrives; what a login shell prints before the first is no frame."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line, in the pieces that came
        self._rest_bytes = 0
        self._greeted = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """
        Raises:
            ValueError: a line is longer than `LINE_BYTES`.
        """
        frames: list[dict[str, Any]] = []
        for line in self._lines(data):
            self._greeted = self._greeted or line.startswith(b'{"is":"hello"')
            if self._greeted and line.startswith(b'{"is":'):  # else somebody else's, a crash's say
                with suppress(ValueError):
                    frames.append(json.loads(line))
        return frames

    def _lines(self, data: bytes) -> list[bytes]:
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest, self._rest_bytes = [], 0
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        longest = max([self._rest_bytes, *map(len, lines)])
        if longest > LINE_BYTES:
            raise ValueError(f"a line of {longest} bytes, of at most {LINE_BYTES}")
        return lines
