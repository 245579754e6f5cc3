"""Names for the blobs in messages of workers, by which the client fetches them: values, artifacts and checkpoints."""

from __future__ import annotations

import os
import resource
from typing import Any, cast

from ..wire.checkpoint_messages import Kept
from ..wire.messages import LOST, Done, Failed, Logged, Message, Value, Yield
from . import limits
from .blobs import BlobStore

ARTIFACTS_BYTES = 1 << 30  # memory limit for artifacts (blobs of log records) that the client has not fetched yet

VALUES = {Done: "value", Yield: "item", Failed: "error"}  # message -> its field whose value may be in a blob


class NamedBlobs:
    """The giver of names to the blobs in workers' messages.

    A node keeps at most `ARTIFACTS_BYTES` of artifacts (blobs of log records), in at most half of its descriptors. The
    other half is reserved for values of tasks, which must not be lost.
    """

    def __init__(self, store: BlobStore, limit_bytes: int = ARTIFACTS_BYTES) -> None:
        self._store, self._limit = store, limit_bytes
        # name of an artifact's blob -> its size in bytes; some of these blobs may already be dropped
        self._sizes: dict[str, int] = {}
        self._waiting_bytes = 0  # sum of the sizes in `_sizes`
        self._look_at = 64  # at this number of artifacts, remove the dropped ones from `_sizes`

    def named(self, message: Message, fds: list[int] | None) -> Message:
        """Add the blob of a worker's message to the store; return the message with the blob's name, or with an error.

        ``fds``: the message's descriptors; None if they were lost because this process had too few free descriptors.
        """
        if isinstance(message, Logged):
            return self._artifact(message, fds)
        if isinstance(message, Kept):
            return self._slot(message, fds)
        field = VALUES.get(type(message), "")
        value: Value | None = getattr(message, field, None)
        if value is None:
            for fd in fds or ():
                os.close(fd)
            return message
        try:
            value = value._replace(blob=self._store.add_result(fds[0])) if fds else None
        except OSError:
            value = None
        if value is None and not isinstance(message, Failed):
            value = Value(b"", None, f"{LOST}{limits.story()}")
        changed: Message = cast("Any", message)._replace(**{field: value})
        return changed

    def _artifact(self, message: Logged, fds: list[int] | None) -> Logged:
        if not fds:
            return message._replace(blob=None if fds is not None else f"{LOST}{limits.story()}")
        fd, *others = fds
        for other in others:
            os.close(other)
        size_bytes, most = os.fstat(fd).st_size, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        if self._waiting_bytes + size_bytes > self._limit or len(self._sizes) >= min(most, self._look_at):
            self._forget_gone()
        if self._waiting_bytes + size_bytes > self._limit or len(self._sizes) >= most:
            os.close(fd)
            story = (
                f"{len(self._sizes)} artifacts of {self._waiting_bytes} bytes wait on its node to be fetched, which "
                f"keeps {most} of {self._limit} bytes"
            )
            return message._replace(blob=f"{LOST}{story}")
        try:
            name = self._store.add_result(fd)
        except OSError:
            return message._replace(blob=f"{LOST}{limits.story()}")
        # a dropped artifact may have had the same descriptor, and therefore the same name
        self._waiting_bytes += size_bytes - self._sizes.get(name, 0)
        self._sizes[name] = size_bytes
        return message._replace(blob=name)

    def _slot(self, message: Kept, fds: list[int] | None) -> Kept:
        """Add a rank's checkpoint to the store, and its name to the message: if it is lost, `LOST` and the reason."""
        fd, *others = fds or (-1,)
        for other in others:
            os.close(other)
        try:
            return message._replace(blob=self._store.add_slot(fd) if fd >= 0 else f"{LOST}{limits.story()}")
        except OSError:
            return message._replace(blob=f"{LOST}{limits.story()}")

    def _forget_gone(self) -> None:
        self._sizes = {name: size for name, size in self._sizes.items() if self._store.fd(name) is not None}
        self._waiting_bytes = sum(self._sizes.values())
        self._look_at = 2 * len(self._sizes) + 64
