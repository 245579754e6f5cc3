"""A channel that leads over a command begins where the bridge does; and a goodbye that is cancelled lets go."""

from __future__ import annotations

import asyncio
import gc
import mmap
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.engine.node.bridge import BEGINS
from outrider.engine.node.client_channels import ByteStream
from outrider.engine.objects.blob_transfers import TransferProgress
from outrider.engine.serialization.payload import Filled, Received
from outrider.engine.transport import channels
from outrider.engine.transport.channels import STEP_BYTES, Channel, Control, Receiving, Sending
from outrider.engine.transport.connection import NodeConnection
from outrider.engine.transport.flow_control import MOST_BYTES, SendAhead
from outrider.engine.transport.link import NodeLink
from outrider.engine.transport.route import TRANSFERS, Route
from outrider.engine.transport.ssh_route import _SSHChannel
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import ProtocolError, encode
from outrider.providers.base import Machine, MachineId

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
async def test_what_a_login_shell_prints_before_the_bridge_is_skipped(piece: int) -> None:
    control = Control()
    bridge = _SSHChannel(control, bridged=True)
    heard = b"Welcome to gpu1!\n\0out" + BEGINS + encode(wire.Refused("no", {})) + encode(wire.Ping(3))
    for at in range(0, len(heard), piece):
        bridge.data_received(heard[at : at + piece])
    assert await control.first == wire.Refused("no", {})
    assert control.rest == encode(wire.Ping(3))


async def test_a_complaint_on_stderr_is_not_the_bridge() -> None:
    control = Control()
    bridge = _SSHChannel(control, bridged=True)
    bridge.data_received(BEGINS, 1)
    bridge.data_received(encode(wire.Refused("no", {})))
    assert not control.first.done()


async def test_a_close_that_is_cancelled_leaves_no_connection() -> None:
    aborted = []
    connection = NodeConnection.__new__(NodeConnection)

    async def retire(_: Any) -> None:
        await asyncio.Event().wait()

    nothing = SimpleNamespace(send=lambda _: None, flush=lambda: None, close=lambda: None, detach=lambda: None)
    for name, value in {
        "_settings": SimpleNamespace(plugins=SimpleNamespace(retire=retire)),
        "_node": 0,
        "_machine": SimpleNamespace(on_this_computer=False),
        "link": nothing,
        "_owner": SimpleNamespace(closed=lambda _: None),
        "_route": SimpleNamespace(
            reached=True,
            bootstrapped=False,
            way_is_lost=False,
            abort=lambda: aborted.append(1),
            begin_no_other=lambda: None,
        ),
        "_lost": None,
        "_watcher": None,
        "_heartbeat": SimpleNamespace(stop=lambda: None),
        "_control": None,
    }.items():
        setattr(connection, name, value)
    closing = asyncio.ensure_future(connection.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert aborted == [1]


SIZE = 70_000


def receiving() -> tuple[Receiving, TransferProgress]:
    progress = TransferProgress(8)
    return Receiving(progress), progress


@pytest.mark.parametrize("size_bytes", [-(2**63), -5, 0, 2**46, 2**47, 2**47 + 1, 2**63, 2**64 - 1], ids=str)
async def test_an_absurd_size_is_an_error_of_its_transfer_at_once(size_bytes: int) -> None:
    """One that is raised in a channel's callback would have its SSH connection closed, and begin all over again."""
    await refuse_absurd_size(size_bytes)


@pytest.mark.parametrize("size_bytes", [2**44, 2**46, 2**47, 2**63 - 1], ids=str)
async def test_size_beyond_the_memory_is_an_error_where_the_kernel_maps_any(
    size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does with vm.overcommit_memory=1."""
    lazily_mapped = mmap.mmap(-1, 4096)
    monkeypatch.setattr(mmap, "mmap", lambda *_, **_options: lazily_mapped)
    monkeypatch.setattr(Receiving, "stall_s", 0.01)
    await refuse_absurd_size(size_bytes)


async def refuse_absurd_size(size_bytes: int) -> None:
    transfer, _ = receiving()
    transfer.data_received(encode(wire.Have("blob", size_bytes)))
    with pytest.raises((ProtocolError, OSError)) as caught:
        await transfer.wait()
    assert not isinstance(caught.value, ConnectionError), "no other connection would help"


@pytest.mark.parametrize(
    "said",
    [
        bytes.fromhex("ffffffff"),
        b"\0\0\0\5hello",
        encode(wire.Ping(1)),
        encode(wire.Missing("blob")),
        encode(wire.Have("blob", 3)) + b"four",
    ],
    ids=["a frame of 4 GiB", "no frame", "another message", "missing", "more than announced"],
)
async def test_what_is_no_blob_is_an_error_of_its_transfer_at_once(said: bytes) -> None:
    transfer, _ = receiving()
    transfer.data_received(said)
    with pytest.raises((ProtocolError, LookupError)):
        await transfer.wait()
    transfer.data_received(b"and more")  # is heard by nobody


async def test_what_is_larger_than_it_may_be_is_refused_before_there_is_room_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(channels, "MemoryAhead", lambda _: pytest.fail("room was made"))
    transfer = Receiving(TransferProgress(8, SIZE))
    transfer.data_received(encode(wire.Have("blob", SIZE + 1)) + b"some of it")
    with pytest.raises(ValueError, match="it has 70,001 bytes, and at most 70,000 are taken"):
        await transfer.wait()


@pytest.mark.parametrize("piece", [999, SIZE])
async def test_a_blob_comes_whole_and_its_course_is_told(piece: int) -> None:
    transfer, progress = receiving()
    said = encode(wire.Have("blob", SIZE)) + bytes(range(256)) * (SIZE // 256) + bytes(SIZE % 256)
    for at in range(0, len(said), piece):
        transfer.data_received(said[at : at + piece])
    await transfer.wait()
    assert progress.at_bytes == SIZE
    assert bytes(transfer.buffer[:256]) == bytes(range(256))


@pytest.mark.parametrize("size_bytes", [SIZE, 3 * channels.ALLOCATED_BYTES])
async def test_the_memory_of_a_blob_that_came_can_be_given_back_at_once(size_bytes: int) -> None:
    """Whoever has the transfer yet: its view of the memory once made `Received.drop` fail, unseen."""
    transfer, _ = receiving()
    transfer.data_received(encode(wire.Have("blob", size_bytes)) + bytes(size_bytes))
    await transfer.wait()
    received = Received(transfer.buffer, None)
    while not received.data.closed:  # a thread may be asking the kernel for memory yet
        received.drop()
        await asyncio.sleep(0.001)
    assert transfer.done.done()


async def test_ended_transfers_hold_no_memory() -> None:
    """asyncssh's channel refers to them in a cycle, until Python's collector runs."""
    transfer, progress = receiving()
    transfer.data_received(encode(wire.Have("blob", SIZE)) + bytes(SIZE))
    await transfer.wait()
    memory = weakref.ref(transfer.buffer)
    transfer.release()
    assert memory() is None
    half, _ = receiving()
    half.data_received(encode(wire.Have("blob", SIZE)) + bytes(SIZE // 2))
    memory = weakref.ref(half.buffer)
    half.release()
    assert memory() is None
    half.data_received(bytes(SIZE // 2))  # of a call that was cancelled
    argument = bytearray(SIZE)
    channels.Sending([argument], progress).release()
    argument.clear()  # it has no views


async def test_a_blob_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Receiving, "stall_s", 0.001)
    transfer, _ = receiving()
    transfer.data_received(encode(wire.Have("blob", SIZE)) + b"some of it")
    with pytest.raises(ConnectionResetError, match="nothing of it came"):
        await transfer.wait()


async def test_a_node_that_accepts_a_channel_and_says_nothing_on_it_is_not_waited_for_as_one_that_sends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Receiving, "answer_s", 0.001)
    transfer, _ = receiving()
    transfer.data_received(encode(wire.Have("blob", SIZE))[:3])
    with pytest.raises(ConnectionResetError, match=r"nothing of it came for 0\.001 s"):
        await transfer.wait()


async def test_no_more_than_so_many_transfers_are_open_at_a_time() -> None:
    """Each takes a descriptor of the executor and of its SSH server, which may have few."""
    opened: list[Any] = []

    class Way(Route):
        async def open_channel(self, channel: Channel) -> None:
            opened.append(channel)

    connection = NodeConnection.__new__(NodeConnection)
    connection._route = Way(Machine(MachineId("m"), None, ""))
    connection.link = cast("NodeLink", SimpleNamespace(count_bytes=lambda *, received: None))
    getting = [asyncio.ensure_future(connection.get(f"b{number}", TransferProgress(8))) for number in range(100)]
    for number in range(100):
        for _ in range(5):  # turns of the loop for those whose turn it is
            await asyncio.sleep(0)
        assert len(opened) == min(100, number + TRANSFERS)
        opened[number].data_received(encode(wire.Have("blob", 4)) + b"blob")
    assert [bytes(await each) for each in getting] == [b"blob"] * 100


def test_a_course_ends_when_it_comes_no_further() -> None:
    """TRANSFER-1."""
    progress = TransferProgress(3)
    for moved in (0, 5, 5, 7, 7, 0):
        progress.begin(None)
        progress.moved(moved)
    progress.begin(None)
    with pytest.raises(RuntimeError, match="begun 3 times, and came no further than 7 bytes"):
        progress.begin(None)


async def test_a_transfer_that_nobody_waits_for_any_more_fails_without_a_word() -> None:
    complaints = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context["message"]))
    transfer, _ = receiving()
    waiting = asyncio.ensure_future(transfer.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    transfer.connection_lost(None)
    del transfer
    gc.collect()
    await asyncio.sleep(0)
    assert complaints == []


def test_the_invariant_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRANSFER-1"""

    class NeverGivesUp(TransferProgress):
        def begin(self, last: Exception | None) -> None:
            self.tries = 0
            super().begin(last)

    monkeypatch.setitem(globals(), "TransferProgress", NeverGivesUp)
    with pytest.raises(pytest.fail.Exception):
        test_a_course_ends_when_it_comes_no_further()


async def test_channels_of_one_thread_are_read_into_one_buffer() -> None:
    """A pool of a thousand nodes has a thousand channels; each copies out what it has read before another reads."""
    one, other = Control(), Control()
    buffer = one.get_buffer(-1)
    assert other.get_buffer(-1) is buffer
    elsewhere = await asyncio.to_thread(lambda: ByteStream().get_buffer(-1))
    assert elsewhere is not buffer  # its loop may read at the same time
    for control, said in ((one, wire.Ping(1)), (other, wire.Ping(2))):
        frame = encode(said)
        buffer[: len(frame)] = frame
        control.buffer_updated(len(frame))
    assert (await one.first, await other.first) == (wire.Ping(1), wire.Ping(2))


class Carrier:
    """A channel that takes whatever it is given, and counts what it is given in each step of the loop."""

    def __init__(self) -> None:
        self.steps, self.step = list[int](), 0
        self.written: list[Any] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        if not self.step:
            asyncio.get_running_loop().call_soon(self.end_step)
        self.step += len(data)
        self.written.append(data)

    def end_step(self) -> None:
        self.steps.append(self.step)
        self.step = 0


async def test_a_blob_goes_out_of_its_own_memory_a_bounded_part_in_each_step_of_the_loop() -> None:
    array = bytearray(range(256)) * (5 * STEP_BYTES // 256 + 1)
    sending, carrier = Sending([b"head", array], TransferProgress(1), at=2), Carrier()
    sending.connection_made(carrier)
    sending.begin()
    for _ in range(50):
        await asyncio.sleep(0.0001)
    assert b"".join(carrier.written) == b"ad" + array
    assert all(each.obj is array for each in carrier.written[1:]), "it is not copied on its way to the channel"
    assert len(carrier.steps) >= 5
    assert max(carrier.steps) <= STEP_BYTES + channels.SLICE_BYTES


async def test_a_blob_waits_while_its_channel_takes_no_more() -> None:
    sending, carrier = Sending([bytes(4 * STEP_BYTES)], TransferProgress(1)), Carrier()
    sending.connection_made(carrier)
    sending.begin()
    sending.pause_writing()
    for _ in range(5):
        await asyncio.sleep(0)
    sent = sum(map(len, carrier.written))
    assert sent <= STEP_BYTES + channels.SLICE_BYTES
    sending.resume_writing()
    assert sum(map(len, carrier.written)) > sent


async def test_what_is_still_being_copied_is_sent_as_far_as_it_is_there() -> None:
    filled, array = Filled(), bytearray(3 * channels.SLICE_BYTES)
    sending, carrier = Sending([array], TransferProgress(1), channels.SLICE_BYTES, filled), Carrier()
    sending.connection_made(carrier)
    sending.begin()
    for at, sent in ((1, 0), (2 * channels.SLICE_BYTES, 1), (len(array), 2)):
        filled.at_bytes = at
        await asyncio.sleep(0.01)
        assert len(carrier.written) == sent


async def test_a_blob_whose_channel_is_closing_has_come_no_further() -> None:
    sending, carrier = Sending([bytes(4 * STEP_BYTES)], TransferProgress(1)), Carrier()
    sending.connection_made(carrier)
    sending.begin()
    vars(carrier)["is_closing"] = lambda: True
    await asyncio.sleep(0.01)
    assert sending._progress.at_bytes == sum(map(len, carrier.written)) < 4 * STEP_BYTES


async def test_a_blob_goes_only_so_far_ahead_of_what_its_host_has_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "SILENT_S", 3600.0)
    sending, carrier, ahead = Sending([bytes(4 * STEP_BYTES)], TransferProgress(1)), Carrier(), SendAhead(0.0)
    sending.limit(ahead)
    sending.connection_made(carrier)
    sending.begin()
    assert sum(map(len, carrier.written)) == MOST_BYTES
    sending.taken(channels.SLICE_BYTES)
    await asyncio.sleep(0.001)
    assert sum(map(len, carrier.written)) == MOST_BYTES + channels.SLICE_BYTES
    sending.connection_lost(None)
    assert sending._silence is None


async def test_a_blob_goes_on_where_its_host_says_nothing() -> None:
    sending, carrier = Sending([bytes(4 * STEP_BYTES)], TransferProgress(1)), Carrier()
    sending.limit(SendAhead(0.0))
    sending.connection_made(carrier)
    sending.begin()
    async with asyncio.timeout(60):
        while sum(map(len, carrier.written)) < 4 * STEP_BYTES:
            await asyncio.sleep(0.01)
    sending.connection_lost(None)
    assert sending._silence is None


async def test_a_command_that_takes_its_first_bytes_is_told_of_the_blob_before_it_gets_any() -> None:
    sending, carrier, ahead = Sending([bytes(4 * STEP_BYTES)], TransferProgress(1)), Carrier(), SendAhead(0.0)
    sending.limit(ahead)
    sending.connection_made(carrier)
    sending.taken(2 << 20)  # sshd's window for a command, which it opens when that has started
    sending.resume_writing()
    await asyncio.sleep(0.001)
    assert not carrier.written
    sending.begin()
    assert sum(map(len, carrier.written)) == MOST_BYTES
    sending.connection_lost(None)
