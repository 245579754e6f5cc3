"""The protocol between client and installer: frames of one JSON line. To the host, a body of bytes follows the line.

Frames to the installer: first ``plan``; then ``file`` (with ``sha256``, its bytes, and ``packed`` if zlib has made them
smaller) for each requested file, and ``wheels`` if requested. Frames from the installer: ``hello``; ``phase`` for
progress; ``need`` to request files; at the end ``result`` or ``failed``. If the client closes the connection before the
end, the installer ends everything that it started.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

LINE_BYTES = 1 << 20  # longest line from an installer; the longest correct line has the end of a log
_CHUNK_BYTES = 1 << 18


def encode(kind: str, body: bytes = b"", **facts: Any) -> bytes:
    """Encode one frame to the installer."""
    head = json.dumps({"is": kind, "bytes": len(body), **facts}, separators=(",", ":"))
    return head.encode() + b"\n" + body


def send(fd: int, kind: str, **facts: Any) -> None:
    """Write one frame from the installer."""
    data = (json.dumps({"is": kind, **facts}, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(fd, data) :]


class Lines:
    """A decoder for frames from the installer.

    Lines before the first frame come from the login shell and are dropped.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # the received part of an unfinished line
        self._greeted = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Decode the frames in ``data`` and the unfinished line before it.

        Raise a ValueError for a line over `LINE_BYTES`.
        """
        frames: list[dict[str, Any]] = []
        for line in self._lines(data):
            self._greeted = self._greeted or line.startswith(b'{"is":"hello"')
            # other lines are not frames, but for example the traceback of a crash
            if self._greeted and line.startswith(b'{"is":'):
                with suppress(ValueError):
                    frames.append(json.loads(line))
        return frames

    def _lines(self, data: bytes) -> list[bytes]:
        lines: list[bytes] = []
        self._rest += data
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        longest = max(map(len, (self._rest, *lines)))
        if longest > LINE_BYTES:
            raise ValueError(f"a line of {longest} bytes, of at most {LINE_BYTES}")
        return lines


class Inbox:
    """Frames from the client, read by a thread, which stores files as they arrive.

    ``closed``: called when the client is gone.
    """

    def __init__(self, stream: BinaryIO, closed: Callable[[], Any]) -> None:
        self._stream, self._closed = stream, closed
        self._frames: queue.Queue[dict[str, Any] | OSError] = queue.Queue()
        self.folder = Path()  # folder for received files, named by their SHA-256
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> dict[str, Any]:
        """Wait for the next frame.

        A file's frame is returned once the file is stored; if that fails, its OSError is raised.
        """
        frame = self._frames.get()
        if isinstance(frame, OSError):
            raise frame
        return frame

    def _read(self) -> None:
        while True:
            try:
                line = self._stream.readline()
                if not line.endswith(b"\n"):
                    raise EOFError
                head: dict[str, Any] = json.loads(line)
                if head["is"] == "file":
                    self._store(head)
            except (EOFError, KeyError, ValueError, zlib.error):
                # the client has closed the connection, or sent something that is not this protocol
                self._closed()
                return
            except OSError as error:
                self._frames.put(error)
            else:
                self._frames.put(head)

    def _store(self, head: dict[str, Any]) -> None:
        """Store a file under a temporary name, then rename it.

        Its bytes are read to the end even if it cannot be stored.
        """
        path = self.folder / head["sha256"]
        beside = self.folder / f"{head['sha256']}.{os.urandom(8).hex()}"  # other installers may write the same file
        digest = hashlib.sha256()
        body = self._body(head["bytes"], packed=head.get("packed", False))
        try:
            with beside.open("wb") as target:
                for data in body:
                    digest.update(data)
                    target.write(data)
                target.flush()
                os.fsync(target.fileno())
            if digest.hexdigest() != head["sha256"]:
                raise OSError(f"the file {head['sha256']} arrived damaged: try again, and check that host's memory")
            beside.replace(path)
        except OSError:
            for _ in body:
                pass
            raise
        finally:  # a stored file was renamed before
            with suppress(OSError):
                beside.unlink()

    def _body(self, size: int, *, packed: bool) -> Iterator[bytes]:
        unpack = zlib.decompressobj()
        while size:
            data = self._stream.read(min(size, _CHUNK_BYTES))
            if not data:
                raise EOFError
            size -= len(data)
            yield unpack.decompress(data) if packed else data
