"""Readings of a machine become samples; what cannot be known is left out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.node import sampler as samples
from outrider.engine.node.sampler import CpuTicks, Machine, Memory, Readings, Sampler, Traffic
from outrider.engine.wire import messages as m
from outrider.engine.wire.codec import decode, encode

pytestmark = pytest.mark.anyio

STAT = """cpu  100 0 50 1000 20 5 5 7 0 0
cpu0 60 0 30 500 10 5 5 7 0 0
cpu1 40 0 20 500 10 0 0 0 0 0
intr 12345 0 0
ctxt 99
"""
MEMINFO = "MemTotal:  8000 kB\nMemFree: 1000 kB\nMemAvailable:   6000 kB\nBuffers: 5 kB\n"
NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 500 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0
  eth0:1000 9 0 0 0 0 0 0 3000 9 0 0 0 0 0 0
docker0: 70 1 0 0 0 0 0 0 80 1 0 0 0 0 0 0
"""  # noqa: E501
MIB = 1 << 20


def readings(at: float, busy_s: float, **changes: Any) -> Readings:
    now = Readings(at, busy_s, int(at * 100), 2.0, Memory(1, 2), Memory(3, 4), Traffic(0, 0))
    return now._replace(**changes)


def test_the_processors_of_this_process_count_and_waiting_is_no_work() -> None:
    assert samples.cpu_ticks(STAT, {0, 1}) == CpuTicks(100 + 50 + 5 + 5, 100 + 50 + 1000 + 20 + 5 + 5 + 7)
    assert samples.cpu_ticks(STAT, {1}) == CpuTicks(60, 570)
    with pytest.raises(ValueError, match="none of this process"):
        samples.cpu_ticks(STAT, {7})


def test_guest_time_is_counted_once() -> None:
    assert samples.cpu_ticks("cpu0 10 2 3 4 5 6 7 8 9 9\n", {0}) == CpuTicks(10 + 2 + 3 + 6 + 7, 45)


def test_memory_that_the_kernel_gives_back_is_not_used() -> None:
    assert samples.host_memory(MEMINFO) == Memory(2000 * 1024, 8000 * 1024)
    with pytest.raises(ValueError, match="MemAvailable"):
        samples.host_memory("MemTotal: 8000 kB\n")
    assert samples.group_memory("5000\n", "anon 1\ninactive_file 2000\n", 9000) == Memory(3000, 9000)
    assert samples.group_memory("5000\n", "", 9000) == Memory(5000, 9000)


def test_the_loopback_does_not_count() -> None:
    assert samples.interface_names(NET_DEV) == {"eth0", "docker0"}
    assert samples.traffic_of(NET_DEV, {"eth0"}) == Traffic(1000, 3000)
    assert samples.traffic_of(NET_DEV, {"eth0", "docker0"}) == Traffic(1070, 3080)


def test_limits_of_a_group() -> None:
    assert samples.group_limit("max\n") is None
    assert samples.group_limit("4096\n") == 4096
    assert samples.group_cpus("max 100000\n") is None
    assert samples.group_cpus("150000 100000\n") == 1.5
    assert samples.group_busy_s("usage_usec 2500000\nuser_usec 1\n") == 2.5
    with pytest.raises(ValueError, match="usage_usec"):
        samples.group_busy_s("")
    assert samples.group_path("12:cpu:/old\n0::/user.slice/a.scope\n") == "user.slice/a.scope"
    assert samples.group_path("0::/\n") == ""
    assert samples.group_path("4:memory:/x\n") is None


def test_a_sample_is_what_was_used_between_two_readings() -> None:
    before = readings(10.0, 100.0, traffic=Traffic(1000, 50))
    sampled = samples.use_between(before, readings(15.0, 105.0, traffic=Traffic(1500, 20)))
    assert sampled == m.Sampled(5.0, 0.5, 2.0, 1, 2, 3, 4, 500, 0, ())


def test_a_clock_that_stands_still_tells_nothing() -> None:
    """As of a sandbox whose /proc/stat is all zeros: a machine that seems idle, and may not be."""
    assert samples.use_between(readings(10.0, 1.0, ticks=0), readings(15.0, 1.0, ticks=0)) is None
    assert samples.use_between(readings(10.0, 1.0), readings(10.0, 1.0)) is None


NUMBERS = st.integers(-(2**65), 2**65)  # as containers and file systems over a network may say that they have
GPUS = st.builds(m.GpuSample, st.just(0), st.none(), NUMBERS, NUMBERS, st.none())
READINGS = st.builds(
    Readings,
    st.floats(0, 1e7),
    st.floats(0, 1e9),
    NUMBERS,
    st.floats(0, 1e4),
    st.builds(Memory, NUMBERS, NUMBERS),
    st.builds(Memory, NUMBERS, NUMBERS),
    st.builds(Traffic, NUMBERS, NUMBERS),
    st.tuples(GPUS),
)


@given(READINGS, READINGS)
def test_any_two_readings_make_a_message_that_the_protocol_allows(before: Readings, now: Readings) -> None:
    sampled = samples.use_between(before, now)
    if sampled is not None:
        assert decode(encode(sampled)[4:]) == sampled


def test_a_sample_is_small() -> None:
    gpus = tuple(m.GpuSample(index, 0.97, 70 << 30, 80 << 30, 650.0) for index in range(8))
    sampled = m.Sampled(5.0, 0.9, 192.0, 1 << 40, 2 << 40, 1 << 40, 2 << 40, 1 << 40, 1 << 40, ())
    assert len(encode(sampled)) <= 100
    assert len(encode(sampled._replace(gpus=gpus))) <= 400


# --- the machine --------------------------------------------------------------------------------------------------


@dataclass
class Host:
    """The files of a machine of four processors."""

    root: Path
    group: str = "0::/\n"
    _files: dict[str, str] = field(default_factory=dict)

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def machine(self, monkeypatch: pytest.MonkeyPatch) -> Machine:
        monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
        for name, text in (("stat", STAT), ("meminfo", MEMINFO), ("net/dev", NET_DEV), ("self/cgroup", self.group)):
            self.write(f"proc/{name}", text)
        root = self.root
        return Machine(root, proc=root / "proc", groups=root / "groups", interfaces=root / "net")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_machine_without_limits_is_read_as_a_whole(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    now = host.machine(monkeypatch).read()
    assert (now.busy_s, now.cpus, now.ticks) == (1.6, 2.0, 1187)
    assert now.memory == Memory(2000 * 1024, 8000 * 1024)
    assert now.traffic == Traffic(1070, 3080)
    assert 0 < now.disk.used_bytes <= now.disk.total_bytes
    assert now.gpus == ()


def test_where_there_is_hardware_it_alone_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.root / "net/eth0/device").mkdir(parents=True)
    assert host.machine(monkeypatch).read().traffic == Traffic(1000, 3000)


def test_the_tightest_limit_around_the_process_counts(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.group = "0::/job/step\n"
    host.write("groups/job/memory.max", f"{4 * MIB}\n")
    host.write("groups/job/memory.current", f"{3 * MIB}\n")
    host.write("groups/job/memory.stat", f"inactive_file {MIB}\n")
    host.write("groups/job/step/memory.max", "max\n")
    host.write("groups/job/step/cpu.max", "50000 100000\n")
    host.write("groups/job/step/cpu.stat", "usage_usec 7000000\n")
    now = host.machine(monkeypatch).read()
    assert now.memory == Memory(2 * MIB, 4 * MIB)
    assert (now.busy_s, now.cpus) == (7.0, 0.5)


def test_limits_above_what_the_machine_has_are_none(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.write("groups/memory.max", f"{1 << 60}\n")
    host.write("groups/cpu.max", "400000 100000\n")
    now = host.machine(monkeypatch).read()
    assert (now.memory.total_bytes, now.cpus) == (8000 * 1024, 2.0)


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    now = Machine(tmp_path).read()
    assert now.busy_s > 0
    assert now.ticks > 0
    assert 0 < now.memory.used_bytes <= now.memory.total_bytes


# --- the thread -----------------------------------------------------------------------------------------------------


class Fake:
    """A machine whose readings are these; it may fail."""

    def __init__(self, *read: Readings | Exception) -> None:
        self._left = [*read]
        self.asked = threading.Semaphore(0)

    def read(self) -> Readings:
        self.asked.release()
        now = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        if isinstance(now, Exception):
            raise now
        return now


async def collected(machine: Fake, send: Callable[[m.Sampled], bool], until: Callable[[], object]) -> None:
    import anyio

    sampler = Sampler(lambda: machine, send, 0.001)  # type: ignore[arg-type, return-value]
    sampler.start()
    try:
        with anyio.fail_after(60):
            while not until():
                await anyio.sleep(0.001)
    finally:
        sampler.close()


async def test_a_sample_that_could_not_be_sent_is_in_the_next_one() -> None:
    machine = Fake(*[readings(float(at), 0.0, traffic=Traffic(at * 10, 0)) for at in range(1, 6)])
    sent: list[m.Sampled] = []
    answers = iter([True, False, False, True])

    def send(sampled: m.Sampled) -> bool:
        told = next(answers)
        if told:
            sent.append(sampled)
        return told

    await collected(machine, send, lambda: len(sent) == 2)
    assert [(each.seconds, each.received_bytes) for each in sent] == [(1.0, 10), (3.0, 30)]


async def test_what_fails_is_no_sample_and_is_logged_once(capsys: pytest.CaptureFixture[str]) -> None:
    machine = Fake(OSError("gone"), OSError("gone"), readings(1.0, 0.0), ValueError("x"), readings(3.0, 2.0))
    sent: list[m.Sampled] = []
    await collected(machine, lambda sampled: not sent.append(sampled), lambda: sent)  # type: ignore[func-returns-value]
    assert [(each.seconds, each.cpu) for each in sent] == [(2.0, 0.5)]
    assert capsys.readouterr().err == "this machine's use cannot be read: OSError('gone')\n"


async def test_a_node_sends_samples_while_its_client_is_there(make: Any) -> None:
    client = await make(connect=False)
    client.setup["sample_every"] = 0.1
    await client.connect()
    first = await client.expect(m.Sampled)
    assert first.memory_total_bytes > 0
    assert first.gpus == ()
    client.cut()
    heard = len(client.heard)
    await client.connect()
    await client.until(lambda: any(isinstance(each, m.Sampled) for each in client.heard[heard:]))
    assert client.session.received == 0  # they do not count


async def test_a_node_that_is_not_asked_reads_nothing(make: Any) -> None:
    client = await make()
    assert client.server._sampler is None


async def test_a_node_refuses_to_send_them_without_a_pause(make: Any) -> None:
    client = await make(connect=False)
    client.setup["sample_every"] = 0.0
    refused = await client.connect()
    assert isinstance(refused, m.Refused)
    assert refused.reason == "sample_every is 0.0: not a number of seconds, 0.1 or more"
