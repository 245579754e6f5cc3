"""The newest messages in a page's stream of updates, and the position of each reader (browser) in it.

No clock, no I/O. A position is a text, the cursor.

LIVE-2: a reader that always continues from its last cursor receives each message once and in order, or is informed that
    it must begin again.
LIVE-3: the messages kept for readers, however slow, take at most ``most_bytes``, except for a single message.
"""

from __future__ import annotations

from collections import deque

MOST_BYTES = 4 << 20


class Updates:
    """The messages of one stream.

    ``name``: unique: a reader whose cursor has the name of an older stream must begin again.
    """

    def __init__(self, name: str, most_bytes: int = MOST_BYTES) -> None:
        self._name, self._most_bytes = name, most_bytes
        self._kept: deque[bytes] = deque()
        self._size_bytes = 0
        self._count = 0  # number of all messages so far

    @property
    def newest(self) -> str:
        """The cursor after the last message so far."""
        return f"{self._name}-{self._count}"

    def add(self, message: bytes) -> None:
        self._count += 1
        self._kept.append(message)
        self._size_bytes += len(message)
        while self._size_bytes > self._most_bytes and len(self._kept) > 1:
            self._size_bytes -= len(self._kept.popleft())

    def since(self, cursor: str) -> list[tuple[str, bytes]] | None:
        """Return (cursor, message) of each message after ``cursor``; None: some of these messages were dropped."""
        name, _, number = cursor.rpartition("-")
        if name != self._name or not number.isascii() or not number.isdecimal() or len(number) > 18:
            return None
        missing = self._count - int(number)
        if not 0 <= missing <= len(self._kept):
            return None
        first = self._count - missing
        messages = [self._kept[place] for place in range(len(self._kept) - missing, len(self._kept))]
        return [(f"{self._name}-{first + place}", message) for place, message in enumerate(messages, 1)]
