"""The delivery of attempts to workers: first everything that the attempt needs and its worker lacks, then its `Run`."""

from __future__ import annotations

from collections.abc import Iterable

from ..wire import codec
from ..wire import messages as wire
from .blobs import BlobStore
from .worker_connection import WorkerConnection


class Deliveries:
    """The node's functions, its latest view (list of nodes), and the messages for attempts that have no worker yet."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.functions: dict[bytes, tuple[bytes, str | None]] = {}  # function -> (`Define` body, name of its blob)
        self.view = b""  # body of the latest `View` message
        # attempt -> (name, value) of each stored object that its arguments refer to
        self.lent: dict[int, tuple[tuple[str, wire.Value], ...]] = {}
        self._views: dict[int, bytes] = {}  # attempt of a rank -> body of the `View` for its broadcast
        # attempt that has no worker yet -> the stream messages for the attempt
        self._early: dict[int, list[tuple[wire.Input | wire.Credit, bytes]]] = {}

    def expect(self, run: wire.Run) -> bool:
        """Prepare for an attempt; return False if the node has no descriptor left for a blob that the attempt needs."""
        code = self.functions.get(run.function, (b"", None))[1]
        lent = self.lent.get(run.attempt)
        if self._store.lacks((run.args.blob, code, *([value.blob for _, value in lent] if lent else ()))):
            return False
        if run.world is not None:  # a newer view may arrive before the attempt has a worker
            self._views[run.attempt] = self.view
        return True

    def deliver(self, connection: WorkerConnection, run: wire.Run, body: bytes) -> None:
        view = self._views.get(run.attempt, self.view)
        if connection.view is not view:
            connection.view = view
            connection.send(view)
        if run.function not in connection.known and run.function in self.functions:
            connection.known.add(run.function)
            definition, blob = self.functions[run.function]
            fd = self._store.fd(blob)
            connection.send(definition, [] if fd is None else [fd])
        for name, value in self.lent.get(run.attempt, ()):
            blob = value.blob
            if blob and connection.shared.get(name) != blob and (fd := self._store.fd(blob)) is not None:
                connection.shared[name] = blob
                connection.send(codec.body(wire.Refer(run.attempt, (name,), (value,))), [fd])
        connection.last = run.attempt
        connection.owes += 1
        connection.send(body, self._blob(run.args))
        for message, early in self._early.pop(run.attempt, ()):
            self.pass_on(connection, message, early)

    def pass_on(self, connection: WorkerConnection | None, message: wire.Input | wire.Credit, body: bytes) -> None:
        """Send a stream's message to its attempt's worker; without a ``connection``, keep it until a worker exists."""
        if connection is not None:
            connection.send(body, self._blob(message.item if isinstance(message, wire.Input) else None))
        else:
            self._early.setdefault(message.attempt, []).append((message, body))

    def take_back(self, connection: WorkerConnection, message: wire.Message | None, body: bytes) -> None:
        """Arrange that a message that a worker left unread (not a `Run`) is sent again when a task needs it.

        If ``message`` is None, ``body`` is not a message of the protocol but a marker; it is sent again at once.
        """
        if isinstance(message, wire.Input | wire.Credit):  # the worker died before it read this message
            self._early.setdefault(message.attempt, []).append((message, body))
        elif isinstance(message, wire.Define):
            connection.known.discard(message.function)
        elif isinstance(message, wire.View):
            connection.view = b""
        elif isinstance(message, wire.Adopt):
            connection.shared.pop(message.blob, None)
        elif isinstance(message, wire.Refer):
            connection.shared.pop(message.names[0], None)
        elif isinstance(message, wire.Drop) or message is None:
            connection.send(body)

    def lend(self, attempt: int, names: Iterable[str], values: Iterable[wire.Value]) -> None:
        """Record the stored objects that an attempt's arguments refer to: their names, and their values in blobs."""
        self.lent[attempt] = (*self.lent.get(attempt, ()), *zip(names, values, strict=False))

    def renew(self, connection: WorkerConnection, blob: str) -> None:
        """Send the blob's current descriptor to a worker that has an older descriptor of the same blob."""
        for name, held in connection.shared.items():
            if held == blob and (fd := self._store.fd(blob)) is not None:
                connection.send(codec.body(wire.Adopt(name, "", 0)), [fd])

    def answered(self, attempt: int) -> None:
        if self.lent:
            self.lent.pop(attempt, None)
        if self._views:
            self._views.pop(attempt, None)

    def forget(self, attempt: int) -> None:
        """Drop all data kept for an attempt that has ended without running."""
        self._early.pop(attempt, None)
        self.lent.pop(attempt, None)
        self._views.pop(attempt, None)

    def _blob(self, value: wire.Value | None) -> list[int]:
        fd = self._store.fd(value.blob) if value is not None else None
        return [] if fd is None else [fd]
