"""Each fault does what it says, and `heal` undoes it: seen with plain asyncssh, sockets and commands."""

from __future__ import annotations

import asyncio
import errno
import socket
import sys
import time
from collections.abc import Callable

import asyncssh
import pytest

pytestmark = pytest.mark.anyio
ALIVE = {"keepalive_interval": 2.0, "keepalive_count_max": 3}
UNANSWERED = "not responding to keepalive"

TALKS = """
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind(("", 7000))
sock.settimeout(0.02)
heard = open("/tmp/heard", "wb", buffering=0)
while True:
    try:
        heard.write(sock.recv(100) + b" ")
    except TimeoutError:
        pass
    sock.sendto(b"tick", (sys.argv[1], int(sys.argv[2])))
"""


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.005)


async def reached(host, within_s: float) -> int | str | None:
    """The errno with which a TCP connection failed; None: it was made."""
    try:
        async with asyncio.timeout(within_s):
            _, writer = await asyncio.open_connection(host.address, host.port)
    except TimeoutError:
        return "silence"
    except OSError as error:
        return error.errno
    writer.close()
    return None


async def test_a_host_that_loses_its_power_says_nothing(hosts, connect):
    [host] = hosts(1)
    connection = await connect(host)
    host.power_off()
    with pytest.raises((TimeoutError, asyncssh.ConnectionLost)):  # no FIN and no RST: it would be ConnectionLost
        async with asyncio.timeout(0.5):
            await connection.wait_closed()
            raise asyncssh.ConnectionLost("its end was told")
    assert not connection.is_closed()
    connection.abort()


async def test_keepalive_alone_notices_it(hosts, connect):
    [host] = hosts(1)
    connection = await connect(host, **ALIVE)
    running = asyncio.create_task(connection.run("sleep 100", check=False))
    await until(lambda: ["sleep", "100"] in host.processes().values())
    host.power_off()
    result = await asyncio.wait_for(running, 60)
    assert result.exit_status is None  # asyncssh does not raise: an ended connection is an end without a status
    with pytest.raises(asyncssh.ChannelOpenError):
        await connection.run("true")


async def test_a_reset_host_ends_its_connections_at_once(hosts, connect):
    [host] = hosts(1)
    connection = await connect(host)
    host.stop_sshd(sessions=True)
    await asyncio.wait_for(connection.wait_closed(), 60)
    assert await reached(host, 60) == errno.ECONNREFUSED
    host.start_sshd()
    assert await reached(host, 60) is None


async def test_a_stopped_sshd_leaves_the_connections_it_had(hosts, connect):
    [host] = hosts(1)
    async with connect(host) as connection:
        host.stop_sshd()
        assert await reached(host, 60) == errno.ECONNREFUSED
        assert (await connection.run("hostname")).stdout.strip() == host.name


async def test_a_partition_that_heals_loses_nothing(hosts, connect):
    [host] = hosts(1)
    async with connect(host) as connection:
        host.partition()
        running = asyncio.create_task(connection.run("hostname"))
        _, unanswered = await asyncio.wait({running}, timeout=0.5)
        assert unanswered
        host.heal()
        assert (await asyncio.wait_for(running, 60)).stdout.strip() == host.name


async def test_a_partition_in_a_lan_is_told_and_a_black_hole_is_silence(hosts):
    lan, cloud = hosts(2)
    lan.partition()
    cloud.blackhole()
    answers = await asyncio.gather(reached(lan, 60), reached(cloud, 5))
    assert answers == [errno.EHOSTUNREACH, "silence"]
    lan.heal()
    cloud.heal()
    assert await asyncio.gather(reached(lan, 60), reached(cloud, 60)) == [None, None]


async def test_a_dead_host_can_be_silent_too(hosts):
    [host] = hosts(1)
    host.power_off(silent=True)
    assert await reached(host, 5) == "silence"


async def test_frames_are_dropped_one_way(lab, hosts):
    [host] = hosts(1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((lab.address, 0))
        sock.setblocking(False)
        talker = host.spawn("python3", "-c", TALKS, lab.address, str(sock.getsockname()[1]))

        def say(word: str) -> None:
            sock.sendto(word.encode(), (host.address, 7000))

        def heard() -> list[str]:
            return host.path("/tmp/heard").read_text().split()

        async def ticks(count: int) -> None:
            loop = asyncio.get_running_loop()
            for _ in range(count):
                assert await asyncio.wait_for(loop.sock_recv(sock, 100), 60) == b"tick"

        try:
            await ticks(1)
            say("both")
            await until(lambda: heard() == ["both"])
            host.drop(incoming=True)
            say("lost")
            drain(sock)
            await ticks(5)
            assert heard() == ["both"]
            host.heal()
            host.drop(outgoing=True)
            say("out")
            await until(lambda: heard() == ["both", "out"])
            drain(sock)  # now: what had left before may have been on its way
            say("more")
            await until(lambda: heard() == ["both", "out", "more"])  # after "out" it has tried to send
            assert talker.alive
            with pytest.raises(BlockingIOError):
                sock.recv(100)
            host.heal()
            await ticks(1)
        finally:
            talker.kill()


def drain(sock: socket.socket) -> None:
    try:
        while True:
            sock.recv(100)
    except BlockingIOError:
        pass


async def test_a_refused_port_resets_what_it_had(hosts, connect):
    [host] = hosts(1)
    connection = await connect(host)
    host.refuse(22)
    assert await reached(host, 60) == errno.ECONNREFUSED
    with pytest.raises((asyncssh.ChannelOpenError, asyncssh.ConnectionLost, OSError)):
        await asyncio.wait_for(connection.run("true"), 60)
    host.heal()
    assert await reached(host, 60) is None


async def test_a_frozen_host_is_connected_to_and_silent_and_goes_on(hosts, connect):
    [host] = hosts(1)
    async with connect(host) as connection:
        host.freeze()
        assert await reached(host, 60) is None  # its kernel answers
        running = asyncio.create_task(connection.run("hostname"))
        with pytest.raises((TimeoutError, asyncssh.ConnectionLost)):
            await connect(host, login_timeout=0.5)
        assert not running.done()
        host.thaw()
        assert (await asyncio.wait_for(running, 60)).stdout.strip() == host.name


async def test_a_frozen_host_can_lose_its_power(hosts):
    [host] = hosts(1)
    sleeper = host.spawn("sleep", "1000")
    host.freeze()
    host.power_off()
    assert sleeper.wait(60) != 0


async def test_a_host_kills_what_exceeds_its_memory(lab, hosts):
    [host] = hosts(1)
    host.limit_memory(100 << 20)
    eats = "a = bytearray(300 << 20); print(len(a))"
    assert host.run("python3", "-c", eats, check=False).returncode in {-9, 137}
    host.limit_memory(None)
    assert host.run("python3", "-c", eats).stdout.strip() == str(300 << 20)
    born = lab.create(memory_bytes=100 << 20)
    assert born.run("python3", "-c", eats, check=False).returncode in {-9, 137}


async def test_hosts_and_their_controller_have_the_cores_that_they_are_given(lab, hosts):
    """A busy machine gives less than that, and never more."""
    busy = "import time as t\nm, c = t.monotonic(), t.process_time()\nwhile t.process_time() < c + 0.2: pass\n"
    busy += "print(0.2 / (t.monotonic() - m))"
    [host] = hosts(1)
    host.limit_cores(0.2)
    assert float(host.run("python3", "-c", busy).stdout) < 0.3
    host.limit_cores(None)
    with lab.limited_cores(0.2):
        done = await asyncio.create_subprocess_exec(sys.executable, "-c", busy, stdout=asyncio.subprocess.PIPE)
        said, _ = await done.communicate()
    assert float(said) < 0.3


async def test_bandwidth_is_what_was_asked(hosts, connect):
    [host] = hosts(1)
    host.limit_bandwidth(up_mbit=16, down_mbit=8)
    async with connect(host) as connection:
        began = time.monotonic()
        await connection.run("cat >/dev/null", input=b"x" * 500_000, encoding=None)
        took = time.monotonic() - began
        assert 0.4 < took < 60  # 0.5 s at 8 Mbit/s; the first burst is free
        began = time.monotonic()
        sent = await connection.run("head -c 1000000 /dev/zero", encoding=None)
        took = time.monotonic() - began
        assert len(sent.stdout) == 1_000_000
        assert 0.4 < took < 60


async def test_distance_costs_time_and_frames(lab, hosts):
    near, far = hosts(2)
    wan = far.distance(delay_s=0.05)

    async def round_trip(host) -> float:
        began = time.monotonic()
        assert await reached(host, 60) is None
        return time.monotonic() - began

    await round_trip(far)  # ARP
    assert min([await round_trip(near) for _ in range(10)]) < 0.1
    assert 0.1 <= min([await round_trip(far) for _ in range(10)]) < 1.0
    wan.delay_s, wan.loss = 0.0, 0.3
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((lab.address, 0))
        sock.setblocking(False)
        talker = far.spawn("python3", "-c", TALKS, lab.address, str(sock.getsockname()[1]))
        try:
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 100), 60)
            for _ in range(200):
                sock.sendto(b"x", (far.address, 7000))
            while "last" not in far.path("/tmp/heard").read_text():  # frames keep their order
                sock.sendto(b"last", (far.address, 7000))
                await asyncio.sleep(0.01)
            assert 60 < far.path("/tmp/heard").read_text().count("x") < 200
        finally:
            talker.kill()
    assert await reached(near, 60) is None


async def test_a_far_host_has_every_other_fault(hosts, connect):
    [host] = hosts(1)
    host.distance(delay_s=0.01, jitter_s=0.01, loss=0.02)
    host.limit_bandwidth(up_mbit=100, down_mbit=100)
    async with connect(host) as connection:
        assert (await connection.run("hostname")).stdout.strip() == host.name
        host.partition()
        running = asyncio.create_task(connection.run("hostname"))
        host.heal()
        assert (await asyncio.wait_for(running, 120)).stdout.strip() == host.name
        data = b"x" * 3_000_000
        assert (await connection.run("cat", input=data, encoding=None)).stdout == data
    host.power_off()
    host.power_on()
    host.wait_up()
    async with connect(host) as connection:
        assert (await connection.run("hostname")).stdout.strip() == host.name


async def test_a_wrong_key_is_seen(hosts, connect):
    one, other = hosts(2)
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await connect(one, known_hosts=asyncssh.import_known_hosts(f"{one.address} {other.host_key}"))
