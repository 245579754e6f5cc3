"""Frames from the client, read in a thread; files are stored as they arrive. When the client is gone, the agent ends.

The agent runs on Python 3.8 and newer.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from . import frames

_CHUNK_BYTES = 1 << 18


class Inbox:
    """The queue of frames. ``closed`` is called in the reading thread when the client is gone."""

    def __init__(self, stream: BinaryIO, closed: Callable[[], Any]) -> None:
        self._stream, self._closed = stream, closed
        self._frames: queue.Queue[dict[str, Any] | OSError] = queue.Queue()
        self._folder = Path()
        threading.Thread(target=self._read, name="inbox", daemon=True).start()

    def store_in(self, folder: Path) -> None:
        """Store files in ``folder`` from now on, named by their SHA-256."""
        self._folder = folder

    def next(self) -> dict[str, Any]:
        """Wait for the next frame; a file's comes when the file is stored.

        Raises:
            OSError: the file cannot be stored.
        """
        frame = self._frames.get()
        if isinstance(frame, OSError):
            raise frame
        return frame

    def _read(self) -> None:
        while True:
            try:
                head = frames.read(self._stream)
                if head is not None and head["is"] == "file":
                    self._store(head)
            except (EOFError, KeyError, ValueError, zlib.error):  # the stream ended in a frame, or is not our protocol
                head = None
            except OSError as error:
                self._frames.put(error)
                continue
            if head is None:
                self._closed()
                return
            self._frames.put(head)

    def _store(self, head: dict[str, Any]) -> None:
        """Store a file beside its place, then rename it. Its bytes are read to the end even if it cannot be stored."""
        path = self._folder / head["sha256"]
        beside = self._folder / f"{head['sha256']}.{os.urandom(8).hex()}"  # other agents may write here as well
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
                raise OSError(f"what arrived as {head['sha256']} is something else")
            beside.replace(path)
        except OSError:
            for _ in body:
                pass
            raise
        finally:  # a stored file has been renamed by now
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
