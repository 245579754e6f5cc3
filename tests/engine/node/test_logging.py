"""What an attempt logs leaves its node before its answer, from each process, and waits for a client that is away."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import context, log_sender, log_socket, output, stored_blobs
from outrider.engine.node.blobs import BlobStore
from outrider.engine.node.log_sender import LogSender
from outrider.engine.node.log_socket import DATAGRAM_BYTES, LogClient, LogEnd, LogSocket
from outrider.engine.record import log_calls
from outrider.engine.wire import log_records as records
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio
KINDS = pytest.mark.parametrize("kind", ["process", "thread"])


def log(step: int, **values: float) -> None:
    task = context.current()
    assert task is not None
    assert task.log is not None
    task.log.put(task.attempt, records.metrics(1.0, step, values))


def log_many(count: int, to: str = "") -> None:
    for step in range(count):
        log(step, loss=1.0)
    if to:
        Path(to).touch()


def by_socket(*lines: bytes) -> None:
    client = LogClient(os.environ["OUTRIDER_LOG"])
    for line in lines:
        client.send(line)


def steps(client: Any, attempt: int) -> list[int]:
    return [
        record.step
        for message in client.of(attempt, m.Logged)
        for record in records.unpacked(message.records, 1.0)
        if record is not None
    ]


@KINDS
async def test_what_is_logged_comes_before_the_answer(make: Any, kind: str) -> None:
    client = await make(kind=kind, slots=2)
    attempts = [client.run(log_many, 1200) for _ in range(4)]
    for attempt in attempts:
        await client.answer(attempt)
        assert steps(client, attempt) == list(range(1200))
        assert isinstance(client.of(attempt, m.Logged, m.Done)[-1], m.Done)


async def test_it_comes_while_the_task_runs(make: Any, tmp_path: Path) -> None:
    def wait() -> None:
        log(7, loss=0.5)
        while not (tmp_path / "go").exists():
            time.sleep(0.001)
        log(8, loss=0.5)
        raise ValueError

    client = await make()
    attempt = client.run(wait)
    await client.until(lambda: steps(client, attempt) == [7])
    (tmp_path / "go").touch()
    assert isinstance(await client.answer(attempt), m.Failed)
    assert steps(client, attempt) == [7, 8]


@KINDS
async def test_processes_of_a_task_log_by_the_socket_before_its_answer(make: Any, kind: str) -> None:
    def fork(step: int) -> int:
        task = context.current()
        assert task is not None
        assert task.log is not None
        assert task.log.here
        if (pid := os.fork()) == 0:
            assert not task.log.here
            by_socket(json.dumps({"values": {"x": 1}, "step": step}).encode())
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    client = await make(kind=kind, slots=1)
    for step in range(20):
        attempt = client.run(fork, step)
        assert client.result(await client.answer(attempt)) == 0
        assert steps(client, attempt) == [step]
        assert isinstance(client.of(attempt, m.Logged, m.Done)[-1], m.Done)


@KINDS
async def test_all_that_lies_in_the_socket_comes_before_the_answer(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """However much a node takes out of it in one turn: of systemd's kernels, 512 datagrams lie in one."""

    def log_all() -> None:
        by_socket(*(json.dumps({"values": {"x": 1}, "step": step}).encode() for step in range(10)))

    monkeypatch.setattr(log_socket, "_AT_ONCE", 1)
    client = await make(kind=kind, slots=1)
    for _ in range(5):
        attempt = client.run(log_all)
        await client.answer(attempt)
        assert steps(client, attempt) == [*range(10)]


def test_what_is_no_record_harms_no_other_in_the_socket(tmp_path: Path) -> None:
    end = LogSocket(tmp_path / "log")
    client = LogClient(end.path)
    said = [b"no record", b"", b"\x90", b' {"values": {"x": 1}}', b'{\n  "values": {"x": 2}\n}\n']
    for line in said:
        client.send(line)
    ((data, fds),) = end.receive()
    client.close()
    end.close()
    assert fds == []
    assert records.count(data) == len(said)
    assert [*records.unpacked(data, 7.0)] == [None] * 3 + [records.Metrics(7.0, None, {"x": x}) for x in (1.0, 2.0)]


async def test_the_socket_is_its_users_alone_and_leaves_with_its_worker(make: Any, tmp_path: Path) -> None:
    client = await make()
    path = Path(await client.call(os.getenv, "OUTRIDER_LOG"))
    assert path.parent == tmp_path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = await client.call(os.getenv, "OUTRIDER_LOG", flags=int(m.RunFlag.FRESH))
    assert other != str(path)
    await client.until(lambda: not Path(other).exists() or client.send(m.Ping(0)))


def descriptors(*kinds: str) -> set[str]:
    """What those descriptors of this process refer to that are of one of these kinds, or of a folder."""
    found: set[str] = set()
    for each in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(FileNotFoundError):  # as the one of the listing
            found.add(os.readlink(f"/proc/self/fd/{each}"))  # noqa: PTH115
    return {each for each in found if each.startswith(kinds)}


def test_a_socket_may_lie_in_a_folder_with_a_long_path(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 90) / ("y" * 90)
    folder.mkdir(parents=True)
    before = descriptors("socket:")
    server = LogSocket(folder / "log-1")
    end = LogEnd(server.sock.fileno())
    assert not end.pending()
    client = LogClient(end.path)
    client.send(b"{}")
    assert end.pending()
    assert [*server.receive()] == [(b"{}", [])]
    assert not end.pending()
    with pytest.raises(ValueError, match=f"may log {DATAGRAM_BYTES} bytes at a time"):
        client.send(bytes(DATAGRAM_BYTES + 1))
    client.send(b"{" + bytes(DATAGRAM_BYTES - 1))
    assert [len(body) for body, _ in server.receive()] == [DATAGRAM_BYTES]
    server.close()
    assert [*folder.iterdir()] == []
    with pytest.raises(ConnectionRefusedError):
        client.send(b"{}")
    assert descriptors("socket:", str(tmp_path)) <= before


@pytest.mark.parametrize("away", [True, False], ids=["away", "slow"])
async def test_a_task_that_logs_waits_for_nobody_and_what_is_lost_is_counted(
    make: Any, away: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(output.Backlog.__init__, "__defaults__", (output.AWAY_BYTES, 50_000))
    go, done = tmp_path / "go", tmp_path / "done"
    client = await make()
    attempt = client.run(wait_and_log, str(go), str(done))
    await client.until(lambda: client.of(attempt, m.Output))
    if away:
        client.cut()
    else:
        client.channel.hold()
    go.touch()
    while not done.exists():
        await client.turn()
    if away:
        await client.connect()
    else:
        client.channel.release()
    await client.answer(attempt)
    found, lost = steps(client, attempt), sum(each.dropped for each in client.of(attempt, m.Logged))
    assert lost > 0
    assert len(found) + lost == 20_000
    assert found[-1] == 19_999
    assert found == sorted(set(found))


def wait_and_log(go: str, to: str) -> None:
    print("begun")
    while not Path(go).exists():
        time.sleep(0.001)
    log_many(20_000, to)


async def test_artifacts_are_blobs_of_which_a_node_keeps_so_many_bytes(
    make: Any, bulk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(size_bytes: int) -> None:
        task = context.current()
        assert task is not None
        assert task.log is not None
        fd = os.memfd_create("artifact")
        os.write(fd, b"x" * size_bytes)
        task.log.put_blob(task.attempt, records.artifact(1.0, "best.pt", size_bytes, "0a" * 32), fd)

    monkeypatch.setattr(stored_blobs.NamedBlobs.__init__, "__defaults__", (1000,))
    client = await make()
    names = []
    for size_bytes in (600, 300, 200):
        attempt = client.run(save, size_bytes)
        await client.answer(attempt)
        (logged,) = client.of(attempt, m.Logged)
        names.append(logged.blob)
    assert names[2].startswith(f"{m.LOST}2 artifacts of 900 bytes wait on its node to be fetched, which keeps ")
    assert names[2].endswith(" of 1000 bytes")
    channel = bulk(client.server)
    assert await channel.ask(m.Get(names[0])) == m.Have(names[0], 600)
    client.send(m.Drop((names[0],)))
    attempt = client.run(save, 200)
    await client.answer(attempt)
    (logged,) = client.of(attempt, m.Logged)
    assert not logged.blob.startswith(m.LOST)


@pytest.mark.parametrize("same_host", [False, True])
def test_artifacts_leave_descriptors_for_values(monkeypatch: pytest.MonkeyPatch, *, same_host: bool) -> None:
    """And those that were fetched leave theirs to others, also under the same name, as on this computer."""
    most = 400
    monkeypatch.setattr(stored_blobs.resource, "getrlimit", lambda _: (2 * most, 2 * most))
    store = BlobStore(same_host=same_host)
    blobs = stored_blobs.NamedBlobs(store)

    def save() -> str:
        blob = blobs.named(m.Logged(1, b"", 0, ""), [os.open("/dev/null", os.O_RDONLY)])
        assert isinstance(blob, m.Logged)
        assert blob.blob is not None
        return blob.blob

    names = [save() for _ in range(most)]
    assert not any(name.startswith(m.LOST) for name in names)
    story = f"{most} artifacts of 0 bytes wait on its node to be fetched, which keeps {most} of "
    assert save().startswith(f"{m.LOST}{story}")
    for _ in range(3 * most):
        store.drop([names.pop(0)])
        names.append(save())
        assert not names[-1].startswith(m.LOST)
    assert len(store.names()) == most
    store.close()


class Pipe:
    """What a sender has sent, in place of a pipe that may be closed."""

    def __init__(self) -> None:
        self.sent: list[m.Logged] = []
        self.closed = False

    def send(self, message: m.Message, fds: Sequence[int]) -> None:
        if self.closed:
            raise OSError(24, "no descriptors")
        assert isinstance(message, m.Logged)
        self.sent.append(message)


def test_records_that_cannot_be_sent_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sender, "MOST", 4)
    pipe, held = Pipe(), threading.RLock()
    sender = LogSender(pipe.send, held)
    with held:  # the thread that sends waits
        for step in range(7):
            sender.put(1, records.metrics(1.0, step, {}))
        pipe.closed = True
        sender._flush(1)
        pipe.closed = False
        sender.put(1, records.metrics(1.0, 8, {}))
        sender.finish(1)
        for _ in range(5):
            sender.put(2, records.metrics(1.0, 9, {}))
        pipe.closed = True
        sender._flush(2)
        pipe.closed = False
        sender.finish(2)
    assert [(records.count(each.records), each.dropped) for each in pipe.sent] == [(1, 7), (0, 5)]


def test_an_artifact_that_cannot_be_sent_leaves_no_descriptor() -> None:
    pipe = Pipe()
    pipe.closed = True
    fd = os.memfd_create("unsent")
    with pytest.raises(OSError, match="no descriptors"):
        LogSender(pipe.send, threading.RLock()).put_blob(1, records.artifact(1.0, "a", 1, "0a" * 32), fd)
    assert descriptors("/memfd:unsent") == set()


def test_a_node_that_does_not_read_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_socket, "PATIENCE_S", 0.05)
    end = LogSocket(tmp_path / "log")
    client = LogClient(end.path)
    with pytest.raises(TimeoutError):
        for _ in range(5000):
            client.send(b"{}")
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            client.send(b"{}")
    assert [*end.receive(rest=True)]
    client.send(b"{}")
    with pytest.raises(TimeoutError):
        for _ in range(5000):
            client.send(b"{}")
    client.close()
    end.close()


def test_a_forked_child_sends_nothing_of_its_parents() -> None:
    pipe = Pipe()
    sender = LogSender(pipe.send, threading.RLock())
    sender._pid += 1  # as in a child
    sender._awake = True
    sender.put(1, records.metrics(1.0, 1, {}))
    sender.finish(1)
    assert pipe.sent == []


async def test_datagrams_of_anybody_end_nothing(make: Any) -> None:
    client = await make()
    path = await client.call(os.getenv, "OUTRIDER_LOG")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.connect(path)
        for body in (b"", b"\xff", b"{", bytes(60_000)):
            sock.send(body)
    assert await client.call(len, "1234") == 4


async def connected_without_logs(make: Any, **options: Any) -> Any:
    client = await make(connect=False, **options)
    client.setup["logs"] = False
    assert isinstance(await client.connect(), m.Welcome)
    return client


def log_all(folder: str) -> None:
    """Log in each way, and wait until the file ``go`` is there."""
    path = Path(folder) / "file"
    path.write_bytes(b"content")
    for step in range(2500):
        log_calls.log_metrics({"loss": 1.0}, step=step)
    log_calls.log_text("text")
    log_calls.log_artifact(path)
    by_socket(b'{"values": {"other": 1}}')
    with pytest.raises(TypeError):
        log_calls.log_metrics({"loss": "text"})
    with pytest.raises(IsADirectoryError):
        log_calls.log_artifact(folder)
    with pytest.raises(FileNotFoundError):
        log_calls.log_artifact(path.with_name("none"))


@KINDS
async def test_where_nobody_keeps_records_a_node_sends_none(make: Any, kind: str, tmp_path: Path) -> None:
    client = await connected_without_logs(make, kind=kind, slots=2)
    attempts = [client.run(log_all, str(tmp_path)) for _ in range(3)]
    for attempt in attempts:
        assert isinstance(await client.answer(attempt), m.Done)
        assert client.of(attempt, m.Logged) == []


@KINDS
@pytest.mark.parametrize("way", ["metrics", "artifact", "socket"])
async def test_what_nobody_keeps_is_a_sign_of_life_all_the_same(make: Any, kind: str, way: str, tmp_path: Path) -> None:
    def work() -> None:
        for name in ("begin", "go"):
            while not (tmp_path / name).exists():
                time.sleep(0.001)
            if name == "begin" and way == "metrics":
                log_calls.log_metrics({"loss": 1.0})
            elif name == "begin" and way == "artifact":
                log_calls.log_artifact(tmp_path / "begin")
            elif name == "begin":
                by_socket(b'{"values": {"other": 1}}')

    async def signed_us() -> tuple[int, int]:
        """Between which times the last sign of life was given, which are as far apart as the answer took."""
        while True:
            since, earliest = len(client.heard), time.monotonic_ns() // 1000
            client.send(m.ShowStacks(since, 10**12))
            await client.until(lambda: [x for x in client.heard[since:] if getattr(x, "attempt", 0) is None])  # noqa: B023
            found = [each for each in client.heard[since:] if isinstance(each, m.Stacks) and each.attempt == attempt]
            if found:
                return earliest - found[0].quiet_us, time.monotonic_ns() // 1000 - found[0].quiet_us

    client = await connected_without_logs(make, kind=kind)
    attempt = client.run(work)
    _, before = await signed_us()
    while time.monotonic_ns() // 1000 < before + 300_000:
        before = min(before, (await signed_us())[1])
    (tmp_path / "begin").touch()
    async with asyncio.timeout(60):
        while (await signed_us())[0] <= before:
            await client.turn()
    (tmp_path / "go").touch()
    assert isinstance(await client.answer(attempt), m.Done)
    assert client.of(attempt, m.Logged) == []


async def test_processes_of_one_task_are_no_sign_of_life_of_its_neighbour(make: Any, tmp_path: Path) -> None:
    def wait(name: str) -> None:
        while not (tmp_path / name).exists():
            time.sleep(0.001)
        if name == "log":
            by_socket(b'{"values": {"other": 1}}')
            wait("go")

    def signs() -> dict[int, float]:
        return {each.attempt: each.began for each in client.server._workers.under_way()}

    client = await connected_without_logs(make, kind="thread", slots=2)
    async with asyncio.timeout(60):
        hangs = client.run(wait, "go")
        while hangs not in signs():
            await client.turn()
        logs = client.run(wait, "log")
        while logs not in signs():
            await client.turn()
        before = signs()
        (tmp_path / "log").touch()
        while signs()[logs] == before[logs]:
            await client.turn()
    assert signs()[hangs] == before[hangs]
    (tmp_path / "go").touch()
    for attempt in (hangs, logs):
        assert isinstance(await client.answer(attempt), m.Done)
