"""A process that answers for all nodes of a measurement: each connection to it is a node whose tasks return at once.

What a client costs is measured with it. It runs nothing: `Run` is answered by `Done` with None, `Ping` by `Pong`.
"""

from __future__ import annotations

import asyncio
import pickle
import resource
import sys
from collections.abc import Callable
from typing import Any

from outrider.engine.node.facts import facts
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import Splitter, decode, encode
from outrider.engine.wire.session import FOR_NODES, Session

NOTHING = wire.Value(pickle.dumps(None), None)
PORTS = 32  # of each node; none is opened
FIRST_PORT = 20_000
BACKLOG = 4096
ANNOUNCE, LISTENS = int(wire.RunFlag.ANNOUNCE), int(wire.RunFlag.LISTENS)


class PlayedNode:
    """One node. ``write`` sends bytes to the client, and ``close`` ends the connection."""

    def __init__(self, write: Callable[[bytes], object], close: Callable[[], object], said: dict[str, Any]) -> None:
        self._write, self._close, self._facts = write, close, said
        self._session = Session(FOR_NODES)
        self._splitter: Splitter | None = Splitter()  # until the client has said hello
        self._taken = 0  # of its ports

    def received(self, data: bytes) -> None:
        if self._splitter is not None:
            head = self._splitter.first(data)
            if head is None:
                return
            hello = decode(head)
            assert isinstance(hello, wire.Hello)
            data, self._splitter = self._splitter.tail, None
            self._write(encode(wire.Welcome(hello.version, True, 0, self._facts, (), self._offer().ports)))
            self._session.resume(0)
        for message in self._session.feed(data):
            match message:
                case wire.Run(attempt=attempt, flags=flags):
                    if flags & ANNOUNCE:
                        self._session.send(wire.Started(attempt))
                    if flags & LISTENS:
                        self._taken += 1
                        self._session.send(self._offer())
                    self._session.send(wire.Done(attempt, NOTHING, 1))
                case wire.PortsTaken():
                    self._session.send(self._offer())
                case wire.Ping(sent_ms):
                    self._session.send(wire.Pong(sent_ms))
                case wire.Recall():
                    self._session.send(wire.Returned(()))  # they have all run
                case wire.Bye():
                    self._close()
        if answers := self._session.flush():
            self._write(answers)

    def _offer(self) -> wire.Ports:
        first = FIRST_PORT + self._taken
        return wire.Ports(self._taken, tuple(range(first, first + PORTS)))


class UnixNode(asyncio.Protocol):
    def __init__(self, said: dict[str, Any]) -> None:
        self._said = said

    def connection_made(self, transport: Any) -> None:
        self._node = PlayedNode(transport.write, transport.close, self._said)

    def data_received(self, data: bytes) -> None:
        self._node.received(data)


async def serve_unix(path: str) -> None:
    said = facts("127.0.0.1", ())
    server = await asyncio.get_running_loop().create_unix_server(lambda: UnixNode(said), path, backlog=BACKLOG)
    print("ready", flush=True)
    await server.serve_forever()


async def serve_ssh(path: str, client_key: str) -> None:
    import asyncssh

    from outrider.engine.transport.ssh import send_nothing_to_ignore

    said = facts("127.0.0.1", ())
    accepted = asyncssh.import_public_key(client_key).public_data

    class Node(asyncssh.SSHUNIXSession[bytes]):
        def connection_made(self, chan: Any) -> None:
            self._node = PlayedNode(chan.write, chan.close, said)

        def session_started(self) -> None: ...

        def data_received(self, data: bytes, datatype: Any) -> None:
            del datatype
            self._node.received(data)

    class Host(asyncssh.SSHServer):
        def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
            send_nothing_to_ignore(conn)  # nor does OpenSSH's server send any

        def begin_auth(self, username: str) -> bool:
            return bool(username)

        def public_key_auth_supported(self) -> bool:
            return True

        def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
            return bool(username) and key.public_data == accepted

        def unix_connection_requested(self, dest_path: str) -> Node:
            assert dest_path == path
            return Node()

    host_key = asyncssh.generate_private_key("ssh-ed25519")
    server = await asyncssh.listen(
        "127.0.0.1", 0, server_factory=Host, server_host_keys=[host_key], compression_algs=None, backlog=BACKLOG
    )
    print(server.sockets[0].getsockname()[1], host_key.export_public_key().decode().strip(), flush=True)
    await server.wait_closed()


def main() -> None:
    """Arguments: the path of the socket. First line on standard input: a client's key, or nothing. It ends with it."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    path, key = sys.argv[1], sys.stdin.readline().strip()

    async def until_let_go() -> None:
        serving = asyncio.ensure_future(serve_ssh(path, key) if key else serve_unix(path))
        letting_go = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait([serving, letting_go], return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
        serving.cancel()

    asyncio.run(until_let_go())


if __name__ == "__main__":
    main()
