"""Output of tasks, on the executor server's side: splits a pipe's bytes into lines and keeps some of them. No I/O."""

from __future__ import annotations

from collections import deque

from ..wire.messages import Message, Output

PIECE_BYTES = 64 * 1024
AWAY_BYTES = 1 << 20


class Lines:
    """One stream of one worker: whole lines, or pieces of a line that is longer than `PIECE_BYTES`."""

    def __init__(self, stream: int) -> None:
        self._stream = stream
        self._attempt = 0
        self._tail = b""

    def feed(self, attempt: int, data: bytes) -> list[Output]:
        """Split ``data``, printed by ``attempt``, into outputs; first finish an unfinished line of another attempt."""
        out = self.finish() if attempt != self._attempt else []
        self._attempt = attempt
        whole, newline, tail = (self._tail + data).rpartition(b"\n")
        whole += newline
        if len(tail) > PIECE_BYTES:
            whole, tail = whole + tail, b""
        self._tail = tail
        return out + self._cut(whole)

    def finish(self) -> list[Output]:
        """Return the unfinished line as it is."""
        tail, self._tail = self._tail, b""
        return self._cut(tail)

    def _cut(self, text: bytes) -> list[Output]:
        out: list[Output] = []
        start = 0
        while start < len(text):
            stop = start + PIECE_BYTES
            if stop < len(text):
                stop = text.rfind(b"\n", start, stop) + 1 or stop
            out.append(Output(self._attempt, self._stream, text[start:stop], 0))
            start = stop
        return out


class Backlog:
    """Messages held while the client is away, in order; of what tasks printed only the last `AWAY_BYTES` are kept."""

    def __init__(self, limit_bytes: int = AWAY_BYTES) -> None:
        self._limit = limit_bytes
        self._entries: list[Message | bytes | None] = []
        self._outputs: deque[int] = deque()  # where in `_entries`
        self._bytes = 0
        self._lost: dict[tuple[int, int], int] = {}  # (attempt, stream) -> bytes

    def add(self, entry: Message | bytes) -> None:
        """Add a message, or the body of one to be relayed."""
        if isinstance(entry, Output):
            self._outputs.append(len(self._entries))
            self._bytes += len(entry.text)
        self._entries.append(entry)
        while self._bytes > self._limit:
            self._lose(self._outputs.popleft())

    def take(self) -> list[Message | bytes]:
        """Return everything; lost bytes are counted on the same stream's next output, or on an empty one in front."""
        entries: list[Message | bytes] = []
        for entry in self._entries:
            if isinstance(entry, Output) and (lost := self._lost.pop((entry.attempt, entry.stream), 0)):
                entries.append(entry._replace(dropped=entry.dropped + lost))
            elif entry is not None:
                entries.append(entry)
        silenced = [Output(attempt, stream, b"", lost) for (attempt, stream), lost in self._lost.items()]
        self.__init__(self._limit)  # type: ignore[misc]
        return [*silenced, *entries]

    def _lose(self, index: int) -> None:
        entry = self._entries[index]
        if isinstance(entry, Output):
            self._entries[index] = None
            self._bytes -= len(entry.text)
            key = entry.attempt, entry.stream
            self._lost[key] = self._lost.get(key, 0) + len(entry.text) + entry.dropped
