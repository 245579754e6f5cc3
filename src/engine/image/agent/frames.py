"""The protocol of client and agent: frames of one line of JSON, towards the agent followed by a body of bytes.

To the agent: ``plan`` first; then a ``file`` (``sha256``, its bytes, ``packed`` by zlib where that is smaller) for each
that it asked for, and ``wheels`` if it needs those. From the agent: ``hello``; ``phase`` for progress; ``need``; at the
end ``result`` or ``failed``. When the client closes before that, the agent ends everything that it started.

The agent runs on Python 3.8 and newer.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any, BinaryIO

VERSION = 1
LINE_BYTES = 1 << 20  # the longest line from an agent; its longest is the end of a log
Frame = dict  # names to JSON values


def encode(kind: str, body: bytes = b"", **facts: Any) -> bytes:
    """Encode one frame to the agent."""
    head = json.dumps({"is": kind, "bytes": len(body), **facts}, separators=(",", ":"))
    return head.encode() + b"\n" + body


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """Read the next frame's head and leave its body unread; None: the client has closed."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    head: dict[str, Any] = json.loads(line)
    return head


def send(fd: int, kind: str, **facts: Any) -> None:
    """Write one frame from the agent."""
    data = (json.dumps({"is": kind, **facts}, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(fd, data) :]


class Lines:
    """Decode frames from the agent. Lines before the first frame come from the login shell, and are dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # pieces of an unfinished line
        self._rest_bytes = 0
        self._greeted = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Decode the frames in ``data`` and what came before.

        Raises:
            ValueError: a line is longer than `LINE_BYTES`.
        """
        frames: list[dict[str, Any]] = []
        for line in self._lines(data):
            self._greeted = self._greeted or line.startswith(b'{"is":"hello"')
            if self._greeted and line.startswith(b'{"is":'):  # other lines are no frames, such as a crash's traceback
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
