"""The protocol between client and installer. A frame is one line of JSON; frames to the installer may have a body.

The body, whose size is in the line, follows the line. Frames to the installer: first ``plan``; then ``file`` for each
requested file (``sha256``, the file's bytes as body, and ``packed`` if they are compressed with zlib), and ``wheels``
on request. Frames from the installer: ``hello``; ``phase`` for progress; ``need`` to request files; at the end
``result`` or ``failed``. If the client closes the connection before the end, the installer ends all processes that it
started.
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

# maximum length of a line from an installer; the longest lines that installers send contain the end of a log
LINE_BYTES = 1 << 20
_CHUNK_BYTES = 1 << 18


def encode(kind: str, body: bytes = b"", **facts: Any) -> bytes:
    """Encode one frame for the installer."""
    head = json.dumps({"is": kind, "bytes": len(body), **facts}, separators=(",", ":"))
    return head.encode() + b"\n" + body


def send(fd: int, kind: str, **facts: Any) -> None:
    """Write one frame to the client. ``fd``: the file descriptor of the connection."""
    data = (json.dumps({"is": kind, **facts}, separators=(",", ":")) + "\n").encode()
    while data:
        data = data[os.write(fd, data) :]


class Lines:
    """A decoder for the frames that the installer sends.

    Lines before the first frame are dropped, because they come from the login shell.
    """

    def __init__(self) -> None:
        self._rest = bytearray()  # the beginning of a line that is not complete yet
        self._greeted = False

    def feed(self, data: bytes) -> list[dict[str, Any]]:
        """Return the frames that ``data`` completes.

        Raises ValueError for a line longer than `LINE_BYTES`.
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
    """Receives frames from the client in a thread, which stores files as they arrive.

    ``closed``: called when the client is gone.
    """

    def __init__(self, stream: BinaryIO, closed: Callable[[], Any]) -> None:
        self._stream, self._closed = stream, closed
        self._frames: queue.Queue[dict[str, Any] | OSError] = queue.Queue()
        self.folder = Path()  # folder for received files; a file's name is its SHA-256
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def next(self) -> dict[str, Any]:
        """Wait for the next frame, and return it.

        The frame of a file is returned when the file is stored. If storing fails, the OSError is raised here.
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
                # the client has closed the connection, or has sent data that does not follow the protocol
                self._closed()
                return
            except OSError as error:
                self._frames.put(error)
            else:
                self._frames.put(head)

    def _store(self, head: dict[str, Any]) -> None:
        """Store a file under a temporary name, then rename it to its SHA-256.

        If the file cannot be stored, read its bytes nevertheless, so that the next frame can be read.
        """
        path = self.folder / head["sha256"]
        # a random name, because other installers may store the same file at the same time
        beside = self.folder / f"{head['sha256']}.{os.urandom(8).hex()}"
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
        finally:  # remove the temporary file; it no longer exists if it was renamed
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
