"""The owner of a record answers requests through its socket, and who asks is told when nobody does."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.api.sink import Refused
from outrider.engine.record.runs import control
from outrider.engine.record.runs.control import CONTROL, ControlSocket, NoAnswer, ask
from outrider.engine.record.runs.files import RecordFiles
from outrider.engine.record.runs.reader import Run, runs_in
from outrider.providers.shared.sockets import short_name

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks has a thread, which may stand still between its connection and its request."""
    monkeypatch.setattr(control, "READ_S", 60.0)


async def add(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"sum": fields["a"] + fields["b"]}


async def never(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    raise Refused("it cannot be done")


async def broken(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"x": 1 / 0}


@asynccontextmanager
async def answering(folder: Path, **more: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> AsyncIterator[Run]:
    files = RecordFiles.make(folder, "train", 1.0)
    files.replace("run.json", {"owner": {"pid": 4711, "host": "here"}})
    sock = ControlSocket(files.directory, {"add": add, "never": never, "broken": broken, **more})
    try:
        yield runs_in(folder)[0]
    finally:
        await sock.close()
        await sock.close()
        files.close()


def said(run: Run, line: bytes) -> Any:
    return json.loads(control._exchange(run.directory / CONTROL, line, 60.0))


async def test_a_request_is_answered(folder: Path) -> None:
    async with answering(folder) as run:
        mode = (run.directory / CONTROL).stat().st_mode
        assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
        for a in range(3):
            assert await asyncio.to_thread(ask, run, "add", within_s=60.0, a=a, b=2) == {"sum": a + 2}
    assert not (run.directory / CONTROL).exists()


async def test_the_path_of_a_record_may_be_long(tmp_path: Path) -> None:
    async with answering(tmp_path / ("x" * 120) / "runs") as run:
        assert await asyncio.to_thread(ask, run, "add", within_s=60.0, a=1, b=2) == {"sum": 3}


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        ("never", "process 4711, which runs .*, refuses: it cannot be done"),
        ("broken", "refuses: ZeroDivisionError"),
        ("fly", "refuses: it knows no such request; it takes add, broken, never"),
    ],
)
async def test_what_is_not_done_is_said(folder: Path, request_: str, told: str) -> None:
    async with answering(folder) as run:
        with pytest.raises(Refused, match=told):
            await asyncio.to_thread(ask, run, request_, within_s=60.0)


@pytest.mark.parametrize("line", [b"", b"\xff", b"[]", b"{}", b'{"request": ["add"]}', b"[" * 100_000, b"x" * 70_000])
async def test_what_is_no_request_harms_nobody(folder: Path, line: bytes) -> None:
    async with answering(folder) as run:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(control, "READ_S", 0.2)
            answer = await asyncio.to_thread(_tolerant, run, line)
        assert answer is None or "refused" in answer
        assert await asyncio.to_thread(ask, run, "add", within_s=60.0, a=1, b=2) == {"sum": 3}


def _tolerant(run: Run, line: bytes) -> Any:
    try:
        return said(run, line)
    except (OSError, ValueError):
        return None


async def test_who_asks_and_says_nothing_keeps_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "READ_S", 0.1)
    async with answering(folder) as run:
        with socket.socket(socket.AF_UNIX) as silent:
            control._connect(silent, run.directory / CONTROL, 60.0)
            assert await asyncio.to_thread(silent.recv, 1) == b""


async def test_a_silent_owner_is_named(folder: Path) -> None:
    goes_on = asyncio.Event()

    async def slow(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        await goes_on.wait()
        return {}

    async with answering(folder, slow=slow) as run:
        with pytest.raises(NoAnswer, match=r"process 4711, .* has not answered for 0\.1 s") as caught:
            await asyncio.to_thread(ask, run, "slow", within_s=0.1)
        assert caught.value.busy
        goes_on.set()


async def test_what_is_under_way_at_the_end_is_answered_or_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "CLOSE_S", 0.1)
    asked, answers = asyncio.Semaphore(0), list[object]()

    async def hang(fields: Mapping[str, Any]) -> Mapping[str, Any]:
        asked.release()
        await asyncio.sleep(600)
        return {}

    def hear(run: Run) -> None:
        try:
            ask(run, "hang", within_s=60.0)
        except NoAnswer as error:
            answers.append(error)

    async with answering(folder, hang=hang) as run:
        thread = threading.Thread(target=hear, args=(run,))
        thread.start()
        await asked.acquire()
    await asyncio.to_thread(thread.join)
    assert "ended before it had answered" in str(answers[0])


async def test_the_dead_and_the_distant_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(folder) as run:
        pass
    with pytest.raises(NoAnswer, match="its owner died"):
        ask(run, "add", within_s=1.0)
    with pytest.raises(NoAnswer, match="has ended"):
        ask(Run(run.id, run.name, run.directory, {"state": "ended"}), "add", within_s=1.0)
    monkeypatch.setattr(Run, "owner", "elsewhere")
    with pytest.raises(NoAnswer, match="is of another computer, here: ask there"):
        ask(run, "add", within_s=1.0)


async def test_an_owner_without_a_socket_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAKING_S", 0.05)
    files = RecordFiles.make(folder, "train", 1.0)
    with pytest.raises(NoAnswer, match=r"takes no requests \(No such file"):
        ask(runs_in(folder)[0], "add", within_s=1.0)
    files.close()


def test_a_socket_that_does_not_listen_yet_is_waited_for(folder: Path) -> None:
    files = RecordFiles.make(folder, "train", 1.0)
    path = files.directory / CONTROL
    with socket.socket(socket.AF_UNIX) as made, short_name(path) as name:
        made.bind(name)
        soon = threading.Timer(0.1, made.listen)
        soon.start()
        with socket.socket(socket.AF_UNIX) as asking:
            control._connect(asking, path, 60.0)
        soon.join()
    files.close()


async def test_connections_wait_where_there_is_no_descriptor_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "AGAIN_S", 0.05)
    async with answering(folder) as run:
        with pytest.MonkeyPatch.context() as patch:
            refused = asyncio.Event()

            def accept(self: socket.socket) -> Any:
                refused.set()
                raise OSError(24, "Too many open files")

            patch.setattr(socket.socket, "accept", accept)
            answer = asyncio.ensure_future(asyncio.to_thread(ask, run, "add", within_s=60.0, a=1, b=2))
            await refused.wait()
        assert await answer == {"sum": 3}
