"""Blobs from node to node: two ends in this process, on loopback, and strangers."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import peers
from outrider.engine.node.blobs import BlobStore
from outrider.engine.node.client_channels import Arrival, Arrivals
from outrider.engine.node.peers import Peers
from outrider.engine.objects.peer_keys import new_keys
from outrider.engine.wire import codec
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio
KEYS = new_keys()
DATA = os.urandom(3 << 20)
DIGEST = hashlib.sha256(DATA).hexdigest()
PID = os.getpid()
ADDRESS = f"127.{64 + (PID >> 16)}.{PID >> 8 & 255}.{PID & 255}"  # where no other process listens


class End:
    """A node's end, and what it has said to its client."""

    def __init__(self, keys: m.Keys = KEYS) -> None:
        self.store = BlobStore(same_host=False)
        self.arrivals = Arrivals(self.store)
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.peers = Peers(self.arrivals, ADDRESS, self.said.put_nowait)
        self.obey(keys)

    def obey(self, order: m.Message) -> None:
        assert self.peers.obey(order)

    async def heard(self) -> Any:
        async with asyncio.timeout(60):
            return await self.said.get()

    def begins(self, name: str, data: bytes) -> Arrival:
        """Have the client send a blob, of which so much has come."""
        arrival = self.arrivals.begin(name, len(DATA))
        if data:
            self.arrivals.take(arrival, data, 0)
        return arrival

    async def serves(self, blob: str, ticket: str = "t") -> int:
        self.obey(m.Serve(ticket, blob, len(DATA)))
        serving = await self.heard()
        assert isinstance(serving, m.Serving)
        assert serving.port is not None
        return serving.port

    def pulls(self, port: int, ticket: str = "t", name: str = "mine") -> None:
        self.obey(m.Pull(name, len(DATA), ticket, ADDRESS, port))

    async def has_copied(self, source: End, name: str) -> m.Arrived:
        """Copy what the source has as "a", as a state of a training is; return what is told of it."""
        self.obey(m.Copy(name, len(DATA), name, ADDRESS, await source.serves("a", name)))
        told = await self.heard()
        source.obey(m.Unserve(name))
        assert isinstance(told, m.Arrived)
        return told

    def content(self, name: str = "mine") -> bytes:
        fd = self.store.fd(name)
        assert fd is not None
        return os.pread(fd, len(DATA) + 1, 0)


@pytest.fixture
async def ends(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[End]]:
    monkeypatch.setattr(peers, "IDLE_S", 0.02)
    for module in (peers, peers):
        monkeypatch.setattr(module, "CONNECT_S", 60.0)
    before = {*Path("/proc/self/fd").iterdir()}
    made = [End(), End(), End()]
    yield made
    for end in made:
        await end.peers.close()
        end.store.close()
    async with asyncio.timeout(60):
        while len({*Path("/proc/self/fd").iterdir()} - before) > 1:  # the folder itself
            await asyncio.sleep(0.01)


async def test_a_blob_is_handed_on_while_it_arrives(ends: list[End]) -> None:
    first, second, third = ends
    arrival = first.begins("a", DATA[:1000])
    second.pulls(await first.serves("a"))
    third.pulls(await second.serves("mine"))
    async with asyncio.timeout(60):
        while (came := third.arrivals.get("mine")) is None or came.have_bytes < 1000:
            await asyncio.sleep(0.01)
    first.arrivals.take(arrival, DATA[1000:], 1000)
    for end in (second, third):
        assert await end.heard() == m.Arrived("mine", len(DATA), DIGEST, True)
        assert end.content() == DATA


async def test_what_breaks_is_gone_on_with_from_another(ends: list[End]) -> None:
    first, second, third = ends
    first.begins("a", DATA[:50_000])
    port = await first.serves("a")
    third.pulls(port)
    async with asyncio.timeout(60):
        while (came := third.arrivals.get("mine")) is None or came.have_bytes < 50_000:
            await asyncio.sleep(0.01)
    first.obey(m.Unserve("t"))
    broken = await third.heard()
    assert broken[:4] == ("mine", 50_000, "", True)
    second.begins("b", DATA)
    third.pulls(await second.serves("b"))
    assert await third.heard() == m.Arrived("mine", len(DATA), DIGEST, True)
    assert third.content() == DATA


async def test_it_listens_only_while_it_serves(ends: list[End]) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    port = await first.serves("a")
    assert await first.serves("a", "u") == port
    first.obey(m.Unserve("t"))
    second.pulls(port, "u")
    assert (await second.heard()).digest == DIGEST
    first.obey(m.Unserve("u"))
    await asyncio.sleep(0)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(ADDRESS, port)
    second.store.drop(["mine"])
    second.pulls(port, "u")
    refused = await second.heard()
    assert (refused.have_bytes, refused.connected) == (0, False)
    assert refused.reason == "Connection refused"


@pytest.mark.parametrize("stranger", ["no key", "another pool's key", "no TLS"])
async def test_who_lacks_the_key_gets_nothing_and_has_nothing_read(
    ends: list[End], stranger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ends[0]
    first.begins("a", DATA)
    port = await first.serves("a")
    read: list[bytes] = []
    monkeypatch.setattr(codec, "decode", read.append)
    context = {
        "no key": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        "another pool's key": peers._context(ssl.PROTOCOL_TLS_CLIENT, *new_keys()),
    }.get(stranger)
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(ADDRESS, port, ssl=context)
    writer.write(codec.encode(m.GetRest("t", 0)))
    got = b""
    with suppress(OSError):
        async with asyncio.timeout(60):
            got = await reader.read()
    assert DATA[:64] not in got
    assert not read
    writer.close()


async def test_a_node_takes_nothing_from_who_lacks_the_key(ends: list[End]) -> None:
    false = End(new_keys())
    false.begins("a", DATA)
    ends[0].pulls(await false.serves("a"))
    refused = await ends[0].heard()
    assert (refused.have_bytes, refused.connected, refused.digest) == (0, False, "")
    await false.peers.close()
    false.store.close()


async def test_who_has_the_key_gets_only_what_it_has_a_ticket_of(ends: list[End]) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    second.pulls(await first.serves("a"), "another")
    assert (await second.heard()).have_bytes == 0


async def test_a_source_that_is_silent_is_given_up_and_one_that_waits_itself_is_not(
    ends: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = ends
    monkeypatch.setattr(peers, "IDLE_S", 0.05)
    monkeypatch.setattr(peers, "SILENCE_S", 1.5)
    arrival = first.begins("a", DATA[:1000])
    port = await first.serves("a")
    second.pulls(port)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2.0):
            await second.said.get()
    monkeypatch.setattr(peers, "IDLE_S", 60.0)
    silent = await second.heard()
    assert silent == m.Arrived("mine", 1000, "", True, "nothing came for 1.5 s")
    first.arrivals.take(arrival, DATA[1000:], 1000)
    second.pulls(port)
    assert (await second.heard()).digest == DIGEST


async def test_a_source_is_not_given_up_for_the_time_for_which_this_process_stood_still(
    ends: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = ends
    monkeypatch.setattr(peers, "SILENCE_S", 0.3)
    arrival = first.begins("a", DATA[:1000])
    second.pulls(await first.serves("a"))
    async with asyncio.timeout(60):
        while (came := second.arrivals.get("mine")) is None or came.have_bytes < 1000:
            await asyncio.sleep(0.01)
    for standstill_s in (0.5, 1.0):
        time.sleep(standstill_s)  # noqa: ASYNC251
        await asyncio.sleep(0.1)
    first.arrivals.take(arrival, DATA[1000:], 1000)
    assert (await second.heard()).digest == DIGEST


async def test_a_node_counts_as_reached_though_this_process_stood_still_on_the_way(
    ends: list[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes of which one is said not to be reached are never tried again. Here, the clock goes on by 2 minutes."""
    first, second, _ = ends
    first.begins("a", DATA)
    second.pulls(await first.serves("a"))
    await asyncio.sleep(0)
    loop = asyncio.get_running_loop()
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + 2 * peers.CONNECT_S)
    assert await second.heard() == m.Arrived("mine", len(DATA), DIGEST, True)


async def test_more_bytes_than_there_are_end_it(ends: list[End]) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    port = await first.serves("a")
    second.obey(m.Pull("mine", 1_000_001, "t", ADDRESS, port))
    told = await second.heard()
    assert not told.digest
    assert "more than there is" in told.reason


async def test_of_a_blob_in_larger_memory_no_more_is_sent_than_there_is(ends: list[End]) -> None:
    first, second, _ = ends
    fd = os.memfd_create("slot", os.MFD_CLOEXEC)
    os.write(fd, DATA + bytes(100_000))
    first.store.add("a", fd)
    second.pulls(await first.serves("a"))
    assert await second.heard() == m.Arrived("mine", len(DATA), DIGEST, True)


async def test_what_is_dropped_is_neither_pulled_nor_served_any_more(ends: list[End]) -> None:
    first, second, third = ends
    first.begins("a", DATA[:1000])
    second.pulls(await first.serves("a"))
    third.pulls(await second.serves("mine"))
    async with asyncio.timeout(60):
        while (came := third.arrivals.get("mine")) is None or came.have_bytes < 1000:
            await asyncio.sleep(0.01)
    second.peers.drop(["mine"])
    assert (await third.heard()).reason
    assert second.arrivals.get("mine") is None
    assert second.said.empty()


async def test_the_digest_of_what_is_there_is_told(ends: list[End]) -> None:
    first = ends[0]
    first.begins("a", DATA)
    first.obey(m.Digest("a"))
    assert await first.heard() == m.Arrived("a", len(DATA), DIGEST, True)
    first.obey(m.Digest("b"))
    assert await first.heard() == m.Arrived("b", 0, "", True, "it is not there")


async def test_a_node_that_cannot_listen_says_why(ends: list[End]) -> None:
    elsewhere = End()
    elsewhere.peers = Peers(elsewhere.arrivals, "192.0.2.7", elsewhere.said.put_nowait)  # RFC 5737: nobody's
    elsewhere.obey(m.Serve("t", "a", 9))
    serving = await elsewhere.heard()
    assert serving.port is None
    assert "192.0.2.7" in serving.reason
    assert len(ends) == 3


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[Peers]:
    """Those that took a connection, one for each."""
    taken: list[Peers] = []
    answer = Peers._answer

    def counted(self: Peers, accepted: Any) -> Any:
        taken.append(self)
        return answer(self, accepted)

    monkeypatch.setattr(Peers, "_answer", counted)
    return taken


async def none_open(end: End) -> None:
    async with asyncio.timeout(60):
        while end.peers._connections:
            await asyncio.sleep(0.01)


async def test_copies_one_after_another_come_over_one_connection(ends: list[End], answered: list[Peers]) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    for name in ("b", "c", "d"):
        assert await second.has_copied(first, name) == m.Arrived(name, len(DATA), "", True)
        assert second.content(name) == DATA
    assert len(answered) == 1
    second.pulls(await first.serves("a"))
    assert (await second.heard()).digest == DIGEST
    assert len(answered) == 1


async def test_a_kept_connection_that_is_closed_is_replaced(
    ends: list[End], answered: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    next_wanted = Peers._next_wanted

    async def closes(self: Peers, reader: asyncio.StreamReader) -> None:
        await next_wanted(self, reader)

    monkeypatch.setattr(Peers, "_next_wanted", closes)
    for name in "bcd":
        assert (await second.has_copied(first, name)).have_bytes == len(DATA)
        assert second.content(name) == DATA
    assert len(answered) == 3


async def test_a_kept_connection_to_a_node_that_stands_still_is_given_up(
    ends: list[End], answered: list[Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    assert (await second.has_copied(first, "b")).have_bytes == len(DATA)
    monkeypatch.setattr(peers, "SILENCE_S", 0.2)
    monkeypatch.setattr(peers, "IDLE_S", 60.0)
    first.store.drop(["a"])
    assert await second.has_copied(first, "c") == m.Arrived("c", 0, "", True, "nothing came for 0.2 s")
    assert len(answered) == 1


async def test_connections_are_kept_for_a_while_and_no_longer(ends: list[End], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = ends
    first.begins("a", DATA)
    await second.has_copied(first, "b")
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not second.peers._to_others._kept:
            await asyncio.sleep(0)
    assert first.peers._connections
    clock = loop.time
    monkeypatch.setattr(loop, "time", lambda: clock() + peers.KEEP_S)
    await none_open(first)
    assert not second.peers._to_others._kept
    assert (await second.has_copied(first, "c")).have_bytes == len(DATA)


async def test_so_many_are_kept_and_no_more(ends: list[End], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = ends
    monkeypatch.setattr(peers, "MOST_KEPT", 2)
    monkeypatch.setattr(peers, "CONNECTIONS", 4)
    first.begins("a", DATA)
    port = await first.serves("a")
    for name in "bcde":
        second.pulls(port, name=name)
    for _ in "bcde":
        assert (await second.heard()).digest == DIGEST
    async with asyncio.timeout(60):
        while len(first.peers._connections) > 2:
            await asyncio.sleep(0.01)
    for name in "fgh":  # the oldest of those that are kept make room
        third.pulls(port, name=name)
    for _ in "fgh":
        assert (await third.heard()).digest == DIGEST


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
