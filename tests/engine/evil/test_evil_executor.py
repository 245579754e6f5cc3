"""A node that errs in every way that the protocol has, beside an honest one: the pool and the other go on."""

from __future__ import annotations

import asyncio
import math
import pickle
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import evil_home
from evil_home import Order, packed

from outrider import Local, NodeLost, OutriderError, Pool, TransferError, compute
from outrider.engine.client import opening
from outrider.engine.objects import blob_transfers
from outrider.engine.transport import heartbeat
from outrider.engine.transport.channels import Receiving, Sending
from outrider.engine.wire import codec
from outrider.engine.wire import messages as m
from outrider.engine.wire.session import FOR_CLIENTS, FOR_NODES
from outrider.engine.wire.values import INLINE_BYTES

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0
LARGE_BYTES = 4 * INLINE_BYTES


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("OUTRIDER_EVIL", str(tmp_path))
    usual = {field: getattr(opening.ENTRY_POINTS, field) for field in opening.ENTRY_POINTS.__slots__}
    evil = opening.ENTRY_POINTS.__class__(**usual | {"executor": "evil_home:serve"})
    monkeypatch.setattr(opening, "ENTRY_POINTS", evil)
    for name in ("QUIET_S", "SILENCE_S"):  # a busy computer keeps honest nodes from answering, too
        monkeypatch.setattr(heartbeat, name, PATIENCE_S)
    return tmp_path


@compute
def double(number: int) -> int:
    time.sleep(0.002)
    return 2 * number


@compute
def large(number: int) -> bytes:
    return bytes([number]) * LARGE_BYTES


@compute
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


@compute
def total(items: Iterator[int]) -> int:
    return sum(items)


@compute
def length(data: bytes) -> int:
    return len(data)


@compute
def sleeps() -> None:
    time.sleep(60)


@dataclass
class Site:
    pool: Pool
    events: Counter[str]

    @property
    def connections(self) -> dict[str, Any]:
        """By what the executors call themselves."""
        connector = self.pool._opened().connector
        return {
            evil_home.HOSTNAME if each.facts.hostname == evil_home.HOSTNAME else "honest": each
            for each in connector._connections.values()
        }

    def rank(self, which: str) -> int:
        node = self.connections[which]._node
        (rank,) = [each.rank for each in self.pool.snapshot().nodes if each.node == node]
        assert rank is not None
        return rank

    async def streamed(self) -> list[int]:
        return [item async for item in self.pool.stream(numbers(40))]

    async def settled(self, *, errors: bool) -> None:
        """Work of every kind; each call settles with what is right, or (if there may be ``errors``) a typed error."""
        pool, honest = self.pool, self.rank("honest")

        async def mapped() -> list[int]:
            return [item async for item in pool.map(double, range(30))]

        jobs = [pool.submit(double(number)) for number in range(20)]
        own = [pool.submit(double(number), on=honest) for number in range(5)]
        cancelled = [pool.submit(sleeps()) for _ in range(2)]
        work: list[tuple[Any, Any, bool]] = [
            *((job, 2 * number, errors) for number, job in enumerate(jobs)),
            *((job, 2 * number, False) for number, job in enumerate(own)),
            *((pool.run(large(number)), bytes([number]) * LARGE_BYTES, errors) for number in range(4)),
            (pool.broadcast(double(4)), [8, 8], errors),
            (self.streamed(), [*range(40)], errors),
            (mapped(), [2 * number for number in range(30)], errors),
            (pool.run(total(iter(range(50)))), sum(range(50)), errors),
        ]
        running = [asyncio.ensure_future(_settled(each)) for each, _, _ in work]
        await asyncio.sleep(0)
        for job in cancelled:
            job.cancel()
        async with asyncio.timeout(PATIENCE_S):
            came = await asyncio.gather(*running)
        for found, (_, right, may_err) in zip(came, work, strict=True):
            assert found == right or (may_err and isinstance(found, OutriderError)), repr(found)[:300]
        # One by one, as each is sent later than its number says: what a node says of a call that is on its way to it
        # reaches the client when the call is its own.
        for number in range(4):
            async with asyncio.timeout(PATIENCE_S):
                found = await _settled(pool.run(length(bytes([number]) * LARGE_BYTES)))
            assert found == LARGE_BYTES or (errors and isinstance(found, OutriderError)), repr(found)[:300]

    async def check_books(self) -> None:
        """What is kept of a node is bounded by what it was given; what was cancelled is kept until its end is known."""
        for connection in self.connections.values():
            link = connection.link
            books = (
                link.orders,
                link._attempts.fetching,
                link._streams.credit,
                link._attempts.recalled,
                link._streams.inputs,
                link._transfers.moving,
            )
            deadline = time.monotonic() + PATIENCE_S
            while any(books) and time.monotonic() < deadline:
                await asyncio.sleep(0.01)
            assert not any(books), books
            assert link.session.kept_bytes < 1 << 20
        assert self.events["NodeSuspect"] + self.events["NodeResumed"] <= 6, "it keeps the client busy"


async def _settled(work: Any) -> Any:
    try:
        return await work
    except Exception as error:  # noqa: BLE001  whatever it is, it is looked at
        return error


@asynccontextmanager
async def evil(folder: Path, order: Order) -> AsyncIterator[Site]:
    evil_home.place(folder, order)
    events: Counter[str] = Counter()

    async def count(pool: Pool) -> None:
        async for event in pool.events():
            events[type(event).__name__] += 1

    async with Pool(provider=Local(shared_memory=False), nodes=2, console="silent") as pool:
        counting = asyncio.ensure_future(count(pool))
        try:
            yield Site(pool, events)
        finally:
            counting.cancel()
    assert not [*(folder / "state").glob("local/*")]


def test_every_message_of_a_node_is_said() -> None:
    """A new one is to be added to the words, or to those that cost the node."""
    assert {*evil_home.WORDS, *evil_home.COSTS_THE_NODE} == FOR_CLIENTS
    asked = {
        m.Hello,
        m.Put,
        m.PutRest,
        m.Get,
        m.GetRest,
    }  # the first words of a channel, which are a client's or another node's
    assert {*evil_home.BLOB_WORDS} == {*codec.TAGS} - FOR_CLIENTS - FOR_NODES - asked


async def test_what_is_said_of_attempts_that_are_not_ones_own_changes_nothing(folder: Path) -> None:
    """All messages, 66 of each whenever a task comes, of attempts that are over, others', cancelled or to come."""
    async with evil(folder, Order(kinds=tuple(kind.__name__ for kind in evil_home.WORDS))) as site:
        before = site.connections[evil_home.HOSTNAME]._node
        await site.settled(errors=False)
        await site.settled(errors=False)
        assert site.connections[evil_home.HOSTNAME]._node == before, "it has broken no rule"
        assert not site.events["NodeSuspect"]
        await site.check_books()


async def test_a_flood_of_them_changes_nothing_and_nothing_is_kept_of_it(folder: Path) -> None:
    """About 70,000 messages for each of the first tasks."""
    kinds = tuple(kind.__name__ for kind in evil_home.WORDS)
    async with evil(folder, Order(kinds=kinds, floods=70)) as site:
        work = [site.pool.run(double(number), on=site.rank(which)) for number in range(3) for which in site.connections]
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*work) == [0, 0, 2, 2, 4, 4]
        for member in site.pool.snapshot().nodes:
            assert member.state == "ready"
        assert not site.events["NodeSuspect"]
        await site.check_books()


BLOBS = {kind.__name__: Order(blobs=said) for kind, said in evil_home.BLOB_WORDS.items()}
BLOBS |= {what: Order(blobs=said) for what, said in evil_home.BLOB_BREACHES.items()}
BLOBS["the end of the channel"] = Order(blobs=evil_home.BLOB_BREACHES["half a blob"], closes=True)


@pytest.mark.parametrize("order", BLOBS.values(), ids=BLOBS)
async def test_whatever_is_said_of_a_blob_is_the_error_of_its_task(
    folder: Path, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    """Of one that is sent, and of one that is fetched. Found by asking what is said by none: calls waited for ever."""
    waits = [(kind, name) for kind in (Receiving, Sending) for name in ("stall_s", "answer_s")]
    patient = [getattr(*each) for each in waits]
    for each in waits:
        monkeypatch.setattr(*each, 0.1)
    monkeypatch.setattr(blob_transfers, "CHANNEL_PAUSE_S", 0.01)
    monkeypatch.setattr(blob_transfers, "CHANNEL_TRIES", 3)
    async with evil(folder, order) as site:
        rank, honest = site.rank(evil_home.HOSTNAME), site.rank("honest")
        async with asyncio.timeout(PATIENCE_S):
            for work in (large(1), length(bytes(LARGE_BYTES))):
                found = await _settled(site.pool.run(work, on=rank))
                assert isinstance(found, OutriderError) or found == LARGE_BYTES, repr(found)[:300]
            for each, value in zip(waits, patient, strict=True):  # a busy computer lets the honest one wait too
                monkeypatch.setattr(*each, value)
            assert await site.pool.run(length(bytes(LARGE_BYTES)), on=honest) == LARGE_BYTES
        assert not site.events["NodeSuspect"]
        await site.check_books()


BREACHES = {
    "a number out of its range": Order(frames=(packed(m.Done, 1, (b"", None, None), -5),)),
    "a size out of its range": Order(frames=(packed(m.Done, 1, (b"", (2**63,), "b"), 0),)),
    "a port out of its range": Order(frames=(packed(m.Ports, (0, 65536, 2**40)),)),
    "not a number": Order(frames=(packed(m.PreemptionNotice, "forged", math.nan, None),)),
    "the end of another's machine": Order(frames=(packed(m.PreemptionNotice, "forged", 60.0, (1, 1, 1, 0)),)),
    "a message of a client's": Order(frames=(packed(m.Kill, 1),)),
    "a tag that nobody has": Order(frames=(b"\x92\x63\x00",)),
    "frames that nobody sent": Order(kinds=("Ack",)),
    "no frame": Order(raw=b"\xff" * 100),
    "a frame without an end": Order(raw=(codec.MAX_FRAME_BYTES + 1).to_bytes(4, "big")),
    "values beyond the credit": Order(own=(("Yield", 5000),)),
    "items beyond the window": Order(own=(("Credit", 3),)),
    "that it is unfit": Order(kinds=("Unfit",)),
}


@pytest.mark.parametrize("order", BREACHES.values(), ids=BREACHES)
async def test_a_breach_of_the_protocol_costs_the_node_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, order: Order
) -> None:
    monkeypatch.setattr("outrider.engine.transport.connection.UNFIT_S", 1.0)
    async with evil(folder, order) as site:
        await site.settled(errors=True)
        async with asyncio.timeout(PATIENCE_S):
            rank = site.rank("honest")
            while evil_home.HOSTNAME in site.connections:  # what breaks the rules of a stream does so where one runs
                streams = [site.streamed() for _ in range(4)] + [site.pool.run(total(iter(range(50)))) for _ in "1234"]
                for found in await asyncio.gather(*map(_settled, streams)):
                    assert isinstance(found, OutriderError | int | list), repr(found)[:300]
        assert site.events["NodeLost"] == 1
        assert await site.pool.run(double(4), on=rank) == 8
        await site.check_books()


async def test_one_that_never_acknowledges_is_given_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SESSION-5: it answers every call and every heartbeat, and the client kept all that it had ever sent there."""
    monkeypatch.setattr("outrider.engine.transport.connection.KEPT_BYTES", 1 << 20)
    data = bytes(INLINE_BYTES - 1000)
    async with evil(folder, Order(acknowledges=False)) as site:
        rank, honest = site.rank(evil_home.HOSTNAME), site.rank("honest")
        async with asyncio.timeout(PATIENCE_S):
            found: list[Any] = []
            while evil_home.HOSTNAME in site.connections and not site.events["NodeLost"]:
                found.append(await _settled(site.pool.run(length(data), on=rank)))
        assert found.count(len(data)) >= (1 << 20) // INLINE_BYTES - 1, "so many are within the bound"
        assert all(each == len(data) or isinstance(each, OutriderError) for each in found), found[-1]
        assert await site.pool.run(length(data), on=honest) == len(data)
        async with asyncio.timeout(PATIENCE_S):
            while not site.events["NodeLost"]:
                await asyncio.sleep(0)
        await site.check_books()


async def test_an_absurd_size_is_the_error_of_its_task(folder: Path) -> None:
    """Found by an audit: with 2**63 the client reconnected 60 times a second, and the task never settled."""
    sizes = (2**63, 0, 2**47 + 1, 2**47, 2**64 - 1)
    async with evil(folder, Order(sizes=sizes)) as site:
        rank = site.rank(evil_home.HOSTNAME)
        async with asyncio.timeout(PATIENCE_S):
            for number in range(len(sizes)):
                found = await _settled(site.pool.run(large(number), on=rank))
                assert isinstance(found, OutriderError), repr(found)[:300]
            await site.settled(errors=True)
        assert not site.events["NodeSuspect"]
        await site.check_books()


def began(name: str, size: int = 1) -> tuple[object, ...]:
    return ("file", name, size, False)


FILES: dict[str, Any] = {
    "a path above": [began("../../x"), b"x", ("end",)],
    "an absolute path": [began("/tmp/outrider-evil"), b"x", ("end",)],
    "a link": [("link", "x", "/etc/passwd")],
    "a device": [(*began("x"), 0o60000)],
    "more than it has announced": [began("x"), b"xy", ("end",)],
    "more files than were asked for": [part for n in range(9000) for part in (began(f"{n}", 0), ("end",))],
    "a file without an end": [began("x", 2**60)],
    "code": [Path("x")],
    "no parts": 5,
}


@pytest.mark.parametrize("said", FILES.values(), ids=FILES)
async def test_files_that_are_no_files_are_refused_and_nothing_is_written(
    folder: Path, tmp_path: Path, said: object
) -> None:
    async with evil(folder, Order(yields=(pickle.dumps(said, 5),))) as site:
        rank, to = site.rank(evil_home.HOSTNAME), tmp_path / "deep" / "to"
        async with asyncio.timeout(PATIENCE_S):
            found = await _settled(site.pool.fetch("**", to=to, on=rank, max_files=1000))
            assert isinstance(found, TransferError), repr(found)[:300]
            assert found.node == rank
            assert [each for each in (tmp_path / "deep").rglob("*") if each.is_file()] == []
            assert await site.pool.fetch("**", to=to, on=site.rank("honest")) == []
        assert not Path("/tmp/outrider-evil").exists()
        assert not site.events["NodeSuspect"]
        await site.check_books()


async def test_a_part_of_a_file_in_a_blob_costs_the_node(folder: Path, tmp_path: Path) -> None:
    """A blob may be of any size, and what is read of files is small."""
    word = packed(m.Yield, 1 << 62, (b"", (2**40,), "b"))
    async with evil(folder, Order(frames=(word,))) as site:
        async with asyncio.timeout(PATIENCE_S):
            found = await _settled(site.pool.fetch("**", to=tmp_path, on=site.rank(evil_home.HOSTNAME)))
            assert isinstance(found, NodeLost), repr(found)[:300]
            assert await site.pool.fetch("**", to=tmp_path, on=site.rank("honest")) == []
        assert site.events["NodeLost"] == 1
        await site.check_books()


@pytest.mark.parametrize(
    "facts", [(("hostname", 5),), (("addresses", []),), (("accelerators", [["T4", math.nan]]),)], ids=str
)
async def test_a_welcome_without_facts_costs_its_machine(folder: Path, facts: tuple[tuple[str, object], ...]) -> None:
    async with evil(folder, Order(facts=facts)) as site:
        assert [*site.connections] == ["honest"]
        assert await site.pool.broadcast(double(4)) == [8, 8]


async def test_one_that_hangs_up_again_and_again_keeps_nobody_busy(folder: Path) -> None:
    async with evil(folder, Order(hangs_up=True)) as site:
        honest, until = site.rank("honest"), time.monotonic() + 3
        while time.monotonic() < until or not site.events["NodeResumed"]:
            assert await site.pool.run(double(4), on=honest) == 8
        assert 1 <= site.events["NodeResumed"] <= 20
