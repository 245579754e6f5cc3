"""Checkpoints in object storage: S3 and compatible storage, Google Cloud Storage, Azure.

Only this module uses obstore.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import obstore
from obstore import exceptions
from obstore.store import from_url

from ..api.errors import CheckpointError, SpecError
from .records import Piece

_PIECE_BYTES = 8 * 1024 * 1024  # size of a part of a multipart upload; S3 accepts 10,000 parts


class ObjectStore:
    """A `store.Store` in object storage.

    Each object is written completely or not at all. `create` sends ``If-None-Match``.
    """

    poll_s = 1.0

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            self._store = from_url(url)
        except Exception as error:
            raise SpecError(f"Checkpoints cannot be kept at {url}: {_first_line(error)}.") from error

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        with self._translated("written"):
            obstore.put(self._store, key, _cut(pieces), use_multipart=True, chunk_size=_PIECE_BYTES)

    def create(self, key: str, data: bytes) -> bool:
        with self._translated("written"):
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except exceptions.AlreadyExistsError:
                # obstore retries a request whose answer was lost, so the existing object may be from this very call
                return self.get(key) == data
        return True

    def get(self, key: str) -> bytes:
        with self._translated("read"):
            return bytes(obstore.get(self._store, key).bytes())

    def read(self, key: str, start: int, length: int) -> Piece:
        if not length:
            return b""
        with self._translated("read"):
            # NumPy arrays use this memory, so it must be writable.
            return memoryview(bytearray(obstore.get_range(self._store, key, start=start, length=length)))

    def names(self, folder: str = "") -> list[str]:
        with self._translated("listed"):
            return [each["path"] for page in obstore.list(self._store, folder or None) for each in page]

    def folders(self) -> list[str]:
        return []  # object storage has no folders

    def delete(self, key: str) -> None:
        with self._translated("deleted"), suppress(FileNotFoundError):
            obstore.delete(self._store, key)

    def remove(self, folder: str) -> None:
        if keys := self.names(folder):
            with self._translated("deleted"):
                try:
                    obstore.delete(self._store, keys)
                except FileNotFoundError:  # another rank is deleting the objects at the same time
                    for key in keys:
                        self.delete(key)

    @contextmanager
    def _translated(self, done: str) -> Iterator[None]:
        try:
            yield
        except exceptions.BaseError as error:
            hint = "it was tried again for a while: see that the bucket exists, and that nodes reach it"
            if isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError):
                hint = "credentials come from the environment of the tasks, such as AWS_ACCESS_KEY_ID, or the machine"
            elif isinstance(error, exceptions.NotSupportedError):
                hint = "this storage cannot create an object only where there is none, which keeps worlds apart"
            raise CheckpointError(
                f"A checkpoint could not be {done} at {self.url}: {_first_line(error)}: {hint}.", url=self.url
            ) from error


def _cut(pieces: Iterable[Piece]) -> Iterator[memoryview]:
    for piece in pieces:
        view = memoryview(piece).cast("B")
        for at in range(0, len(view), _PIECE_BYTES):
            yield view[at : at + _PIECE_BYTES]


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:400].rstrip(".")
