"""A client that goes and comes back, one that does not belong here, and an executor server's own end."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import process
from outrider.engine.node.freeports import KEPT
from outrider.engine.wire import messages as m
from outrider.engine.wire.codec import encode

pytestmark = pytest.mark.anyio


async def test_a_welcome_says_what_the_node_is(make: Any) -> None:
    client = await make(connect=False, accelerators=[("H100", 80.0)])
    welcome = await client.connect()
    assert (welcome.version, welcome.resumed, welcome.received, welcome.blobs) == (m.PROTOCOL_VERSION, False, 0, ())
    assert welcome.facts["pid"] == os.getpid()
    assert welcome.facts["accelerators"] == (("H100", 80.0),)
    assert welcome.facts["addresses"] == ("127.0.0.1",)
    assert len(set(welcome.ports)) == KEPT


async def test_tasks_go_on_while_the_client_is_away(make: Any, tmp_path: Path) -> None:
    def work(number: int) -> int:
        (tmp_path / str(number)).touch()
        return number

    client = await make()
    client.define(work)
    await client.call(os.getpid)
    attempts = [client.run(work, number) for number in range(20)]
    await client.turn()
    client.cut()
    while len(list(tmp_path.glob("[0-9]*"))) < 20:
        await client.turn()
    late = [client.run(work, number) for number in (20, 21)]
    welcome = await client.connect()
    assert welcome.resumed
    for attempt in [*attempts, *late]:
        await client.answer(attempt)
    assert sum(isinstance(x, m.Done) for x in client.heard) == 23


async def test_a_client_may_be_cut_off_again_and_again(make: Any) -> None:
    client = await make(slots=2)
    attempts = []
    for round_ in range(10):
        attempts += [client.run(os.getpid) for _ in range(10)]
        if round_ % 2:
            await client.turn()
        client.cut()
        await client.connect()
    for attempt in attempts:
        await client.answer(attempt)
    assert sum(isinstance(x, m.Done) for x in client.heard) == 100


async def test_an_executor_server_that_knows_nothing_of_a_session_says_so(make: Any) -> None:
    """Found by the simulator: the channel just closed, and the client tried again until its time was up."""
    client = await make(connect=False)
    welcome = await client.connect(received=3)
    assert (welcome.resumed, welcome.received) == (False, 0)


async def test_a_new_channel_of_the_session_takes_over_a_hanging_one(make: Any) -> None:
    client = await make()
    old = client.channel
    client.session.lost()
    assert (await client.connect()).resumed
    assert old.closed
    assert await client.call(os.getpid)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": m.PROTOCOL_VERSION + 1}, f"protocol {m.PROTOCOL_VERSION + 1}"),
        ({"python": "2.7"}, "Python 2.7"),
        ({"cloudpickle": "0"}, "cloudpickle 0"),
        ({"setup": {"slots": 0, "kind": "process"}}, "slots is 0"),
        ({"setup": {"slots": 1, "kind": "goat"}}, "kind is 'goat'"),
        ({"setup": {"slots": 1, "kind": "process", "env": {"A": 1}}}, "env is not texts"),
        ({"setup": {"slots": 1, "kind": "process", "env": {"A=": "1"}}}, "with '=' in it"),
    ],
)
async def test_who_does_not_match_is_refused_with_the_reason(make: Any, changes: Any, reason: str) -> None:
    client = await make(connect=False)
    refused = await client.connect(**changes)
    assert isinstance(refused, m.Refused)
    assert reason in refused.reason
    assert refused.facts["python"]
    assert client.channel.closed
    client.session.lost()
    assert isinstance(await client.connect(), m.Welcome)


async def test_another_session_is_refused_and_disturbs_nobody(make: Any) -> None:
    client = await make()
    stranger = type(client)(client.server, client.setup)
    stranger.name = "stranger"
    assert "another session" in (await stranger.connect()).reason
    assert await client.call(os.getpid)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\xff" * 8, encode(m.Kill(1)), encode(m.Started(1)), b"\x00\x00\x00\x01\xc1"),
        *(encode(m.Put("b", size)) for size in (-5, 2**47 + 1, 2**63)),
        encode(m.Hello(1, "session", 0, "3.11", "3", math.nan, {})),
    ],
)
async def test_a_channel_that_begins_with_anything_else_is_closed(make: Any, bulk: Any, data: bytes) -> None:
    client = await make()
    channel = bulk(client.server)
    channel.channel.receive(data)
    assert channel.channel.closed
    assert await client.call(os.getpid)


@pytest.mark.parametrize(
    "data",
    [
        *(b"\xff" * 8, encode(m.Started(1)), encode(m.Ack(999)), encode(m.Hello(*[0] * 6, {}))),
        *(encode(m.Kill(2**64 - 1)), encode(m.Credit(1, -2, 1)), encode(m.PreemptionNotice("cloud", math.inf))),
    ],
)
async def test_something_malformed_costs_the_connection_not_the_session(make: Any, data: bytes) -> None:
    client = await make()
    attempt = client.run(time.sleep, 0.02)
    await client.turn()
    client.channel.receive(data)
    assert client.channel.closed
    client.cut()
    assert (await client.connect()).resumed
    await client.answer(attempt)


async def test_a_blob_that_is_cut_off_or_too_long_does_not_exist(make: Any, bulk: Any) -> None:
    client = await make()
    cut = bulk(client.server)
    cut.channel.receive(encode(m.Put("cut", 10)) + b"12345")
    cut.channel.lose()
    long = bulk(client.server)
    long.channel.receive(encode(m.Put("long", 3)) + b"12345")
    assert long.channel.closed
    for name in ("cut", "long"):
        assert await bulk(client.server).ask(m.Get(name)) == m.Missing(name)


async def test_a_slow_reader_of_a_blob_is_waited_for(make: Any, bulk: Any) -> None:
    client = await make()
    data = os.urandom(1_000_000)
    await bulk(client.server).ask(m.Put("b", len(data)), data)
    reading = bulk(client.server)
    reading.channel.hold()
    reading.channel.receive(encode(m.Get("b")))
    assert sum(map(len, reading.channel.held)) < 200
    reading.channel.release()
    await client.until(lambda: len(reading.data) == len(data) or asyncio.ensure_future(client._tell()) is None)
    assert reading.data == data


async def test_a_ping_is_answered(make: Any) -> None:
    client = await make()
    asked_at = time.time()
    client.send(m.Ping(77))
    pong = await client.expect(m.Pong)
    assert pong.sent_ms == 77
    assert asked_at - 1 < pong.clock_us / 1e6 < time.time() + 1, "the node's clock, which is this computer's"


async def test_a_pong_counts_the_frames_and_attempts_before_it(make: Any) -> None:
    client = await make()
    attempts = [client.run(time.sleep, 60), client.run(time.sleep, 60)]
    client.send(m.Ping(1))
    pong = await client.expect(m.Pong)
    assert pong.frames == client.session.received
    assert pong.attempts == (2, sum(attempts))


async def test_attempts_that_one_side_alone_has_are_settled(make: Any) -> None:
    client = await make()
    attempt = client.run(time.sleep, 60)
    client.send(m.Compare((99,)))
    ended = {each.attempt: each.cause for each in (await client.answer(attempt), await client.answer(99))}
    assert ended == {attempt: "killed", 99: "unknown"}


# --- the end ---------------------------------------------------------------------------------------------------------


async def ending(make: Any, **options: Any) -> tuple[Any, asyncio.Event]:
    client = await make(**options)
    return client, client.server.ended


async def test_bye_ends_what_runs(make: Any) -> None:
    client, over = await ending(make)
    pid = await client.call(os.getpid)
    client.run(time.sleep, 60)
    client.send(m.Bye())
    await asyncio.wait_for(over.wait(), 60)
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("where", ["_obey", "_scheduler"])
async def test_a_node_with_a_defect_ends_and_keeps_nobody_waiting(
    make: Any, where: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it has received never comes again: going on, it would leave out what came behind the error."""

    def fails(*_: object) -> None:
        raise RuntimeError("a defect")

    client, over = await ending(make)
    attempt = client.run(time.sleep, 60)
    await client.turn()
    if where == "_obey":
        monkeypatch.setattr(client.server, "_obey", fails)
    else:
        monkeypatch.setattr(client.server._workers._scheduler, "decide", fails)
    client.send(m.Kill(attempt))
    await asyncio.wait_for(over.wait(), 60)
    assert "RuntimeError: a defect" in capsys.readouterr().err


async def test_a_node_that_misses_a_frame_ends(make: Any) -> None:
    client, over = await ending(make)
    attempt = client.run(time.sleep, 60)
    client.send(m.Ping(1, client.session.sent + 1))
    await asyncio.wait_for(over.wait(), 60)
    unfit = await client.expect(m.Unfit)
    assert "a defect" in unfit.reason
    assert not client.of(attempt, m.Done)


async def test_a_node_that_hears_nothing_for_its_lease_ends_itself(make: Any) -> None:
    client, over = await ending(make, connect=False)
    client.lease_s = 0.05
    await client.connect()
    await asyncio.wait_for(over.wait(), 60)


async def test_a_node_that_no_client_ever_greets_does_too(make: Any) -> None:
    _, over = await ending(make, connect=False, lease_s=0.05)
    await asyncio.wait_for(over.wait(), 60)


async def test_a_lease_is_renewed_by_whatever_is_heard(make: Any) -> None:
    client, over = await ending(make)
    for number in range(3):
        client.server._client_seen_at -= 2 * client.lease_s  # as if so much time had passed
        client.send(m.Ping(number))
        await client.until(lambda: sum(isinstance(each, m.Pong) for each in client.heard) > number)  # noqa: B023 - awaited
        client.server._check_lease()
        assert client.server._closing is None
    client.server._client_seen_at -= 2 * client.lease_s
    client.server._check_lease()
    await asyncio.wait_for(over.wait(), 60)


async def test_without_its_fork_server_a_node_ends(make: Any) -> None:
    client, over = await ending(make)
    worker = await client.call(os.getpid)
    os.kill(await client.call(os.getppid), signal.SIGKILL)
    await asyncio.wait_for(over.wait(), 60)
    await gone(worker)


async def gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        if pid in process.children(os.getpid()):  # an orphan, and so ours
            os.waitpid(pid, os.WNOHANG)  # noqa: ASYNC222 - which does not wait
        await asyncio.sleep(0.001)
    assert not Path(f"/proc/{pid}").exists()


async def test_closing_twice_is_fine(make: Any) -> None:
    client = await make()
    await asyncio.gather(client.server.close(), client.server.close())
    await client.server.close()
