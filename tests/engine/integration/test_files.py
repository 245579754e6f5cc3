"""Files of nodes come here, and files from here get there, whatever else goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, NodeLost, Nodes, Pool, SpecError, TransferError, compute, instance_info
from outrider.engine.client import file_transfer
from outrider.engine.runtime.work_files import FileWriter

pytestmark = pytest.mark.anyio
LARGE_BYTES = 3_000_000


@compute
def write(folder: str, text: str = "") -> int:
    Path(folder, "deep").mkdir(parents=True, exist_ok=True)
    Path(folder, "a.txt").write_text(text)
    Path(folder, "deep", "large").write_bytes(bytes([instance_info().rank]) * LARGE_BYTES)
    return os.getppid()


@compute
def read(name: str) -> str:
    return Path(name).read_text()


@compute
def wait() -> None:
    threading.Event().wait()


@compute
def do_nothing() -> None:
    pass


async def test_files_of_every_node_come_by_node(pool: Pool, tmp_path: Path) -> None:
    await pool.broadcast(write("log", "said"))
    fetched = await pool.fetch("log/**", to=tmp_path)
    expected = [tmp_path / f"node-{rank}" / "log" / name for rank in range(4) for name in ("a.txt", "deep/large")]
    assert fetched == expected
    for rank in range(4):
        assert (tmp_path / f"node-{rank}/log/deep/large").read_bytes() == bytes([rank]) * LARGE_BYTES
        assert (tmp_path / f"node-{rank}/log/a.txt").read_text() == "said"


async def test_one_node_is_asked_alone_and_what_is_not_there_is_no_error(pool: Pool, tmp_path: Path) -> None:
    await pool.broadcast(write("one"))
    assert await pool.fetch("one/a.txt", to=tmp_path, on=2) == [tmp_path / "node-2/one/a.txt"]
    assert await pool.fetch("one/a.txt", to=tmp_path, on="head") == [tmp_path / "node-0/one/a.txt"]
    assert await pool.fetch("nothing/**", to=tmp_path) == []


async def test_files_come_while_every_slot_is_taken_and_replace_earlier_ones(pool: Pool, tmp_path: Path) -> None:
    await pool.broadcast(write("busy", "first"))
    jobs = [pool.submit(wait(), on=rank) for rank in range(4)]
    await pool.fetch("busy/a.txt", to=tmp_path)
    for job in jobs:
        job.cancel()
    await pool.broadcast(write("busy", "second"))
    await pool.fetch("busy/a.txt", to=tmp_path)
    assert {(tmp_path / f"node-{rank}/busy/a.txt").read_text() for rank in range(4)} == {"second"}


async def test_files_of_ranks_that_failed_come(pool: Pool, tmp_path: Path) -> None:
    @compute
    def fails() -> None:
        Path("trace").write_text("as far as it came")
        os._exit(3)

    with pytest.raises(Exception, match="exit status 3"):
        await pool.run(fails(), on=1)
    (path,) = await pool.fetch("trace", to=tmp_path)
    assert path.read_text() == "as far as it came"


async def test_a_fetch_that_is_cancelled_leaves_whole_files_and_can_be_repeated(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, cancelled = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()
    closed_while_writing: list[bool] = []

    class Watched(FileWriter):
        writes = 0  # the thread that does

        def write(self, part: Any) -> None:
            self.writes = threading.get_ident()
            super().write(part)
            loop.call_soon_threadsafe(begun.set)
            cancelled.wait()
            self.writes = 0

        def close(self) -> None:
            closed_while_writing.append(self.writes not in {0, threading.get_ident()})
            super().close()

    await pool.broadcast(write("cancelled"))
    with monkeypatch.context() as patch:
        patch.setattr(file_transfer, "FileWriter", Watched)
        fetching = asyncio.ensure_future(pool.fetch("cancelled", to=tmp_path))
        await begun.wait()
        fetching.cancel()
        for _ in range(20):
            await asyncio.sleep(0.001)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await fetching
    assert not any(closed_while_writing)
    assert not [*tmp_path.rglob("*.part")]
    for path in tmp_path.rglob("large"):
        assert path.stat().st_size == LARGE_BYTES
    assert len(await pool.fetch("cancelled", to=tmp_path)) == 8
    assert await pool.broadcast(write("cancelled"))  # its slots are as they were


async def test_a_full_disk_is_an_error_that_names_the_file(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(FileWriter):
        def _begin(self, name: str, executable: bool) -> None:
            super()._begin(name, executable)
            assert self._file is not None
            self._file.close()
            self._file = Path("/dev/full").open("wb")  # noqa: SIM115  it closes it

    await pool.broadcast(write("full"))
    monkeypatch.setattr(file_transfer, "FileWriter", Full)
    with pytest.raises(TransferError, match=r"node-2/full/deep/large could not be written \(No space") as full:
        await pool.fetch("full/deep", to=tmp_path, on=2)
    assert full.value.full
    assert full.value.path == str(tmp_path / "node-2/full/deep/large")
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


async def test_a_file_where_a_folder_belongs_is_an_error_that_names_it(pool: Pool, tmp_path: Path) -> None:
    await pool.broadcast(write("blocked"))
    (tmp_path / "node-0").write_text("in the way")
    with pytest.raises(TransferError, match="node-0") as blocked:
        await pool.fetch("blocked", to=tmp_path)
    assert not blocked.value.full
    assert len([*tmp_path.glob("node-*/blocked/a.txt")]) == 3, "the other nodes' files have come"


async def test_more_than_the_limits_is_refused(pool: Pool, tmp_path: Path) -> None:
    await pool.broadcast(write("limits"))
    with pytest.raises(TransferError, match="more files than max_files="):
        await pool.fetch("limits", to=tmp_path / "few", max_files=5)
    with pytest.raises(TransferError, match="more than max_gb="):
        await pool.fetch("limits", to=tmp_path / "small", max_gb=0.005)
    assert len([each for each in (tmp_path / "few").rglob("*") if each.is_file()]) <= 5
    assert sum(each.stat().st_size for each in (tmp_path / "small").rglob("*") if each.is_file()) <= 5_000_000


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../x", "~/x", "", 5])
async def test_what_is_not_in_the_work_folder_is_refused(pool: Pool, pattern: Any) -> None:
    with pytest.raises(SpecError):
        await pool.fetch(pattern)
    with pytest.raises(SpecError):
        await pool.push(__file__, to=pattern)
    with pytest.raises(SpecError):
        Pool(keep=pattern)


async def test_what_is_pushed_is_in_every_work_folder(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/words").write_text("words" * 100_000)
    (tmp_path / "one").write_text("one")
    await pool.push(tmp_path / "data")
    await pool.push(str(tmp_path / "one"), to="in")
    assert await pool.broadcast(read("data/deep/words")) == ["words" * 100_000] * 4
    assert await pool.broadcast(read("in/one")) == ["one"] * 4
    (tmp_path / "one").write_text("other")
    await pool.push(tmp_path / "one", to="in", on=1)
    assert await pool.broadcast(read("in/one")) == ["one", "other", "one", "one"]


async def test_what_cannot_be_pushed_says_why(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is none here"):
        await pool.push(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe")
    for none in (tmp_path / "pipe", "/dev/null", "x" * 300):
        with pytest.raises(SpecError, match="is none here"):
            await pool.push(none)
    for no_path in ("", 5, b"file", "a\0b"):
        with pytest.raises(SpecError, match="fetch and push take paths"):
            await pool.push(no_path)  # type: ignore[arg-type]
        with pytest.raises(SpecError, match="fetch and push take paths"):
            await pool.fetch("log/", to=no_path)  # type: ignore[arg-type]

    @compute
    def in_the_way() -> None:
        Path("way").write_text("a file")

    await pool.broadcast(in_the_way())
    (tmp_path / "file").touch()
    with pytest.raises(TransferError, match=r"push of 'file' on node 0 failed"):
        await pool.push(tmp_path / "file", to="way")


async def test_the_files_of_a_lost_node_are_a_typed_error_and_the_others_come(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        fork_servers = await pool.broadcast(write("lost"))
        os.kill(fork_servers[1], signal.SIGSTOP)  # no task of ours can begin there
        fetching = asyncio.ensure_future(pool.fetch("lost/a.txt", to=tmp_path))
        await asyncio.sleep(0)
        os.kill(fork_servers[1], signal.SIGKILL)
        with pytest.raises(NodeLost, match="node of rank 1 was lost") as lost:
            await fetching
        assert lost.value.rank == 1
        assert (tmp_path / "node-0/lost/a.txt").exists()


def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: type[BaseException] | None) -> None:
    monkeypatch.chdir(tmp_path)
    with Pool(provider=Local(), nodes=2, keep="outputs/", console="silent") as pool:
        write("outputs") @ pool
        write("other") @ pool
        if fails is not None:
            raise fails


@pytest.mark.parametrize("fails", [None, ValueError, KeyboardInterrupt])
def test_what_is_to_be_kept_comes_however_the_block_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: type[BaseException] | None
) -> None:
    if fails is None:
        kept(tmp_path, monkeypatch, None)
    else:
        with pytest.raises(fails):
            kept(tmp_path, monkeypatch, fails)
    names = {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()}
    assert names == {f"outputs/node-{rank}/{name}" for rank in range(2) for name in ("a.txt", "deep/large")}


@pytest.mark.parametrize("fails", [None, LookupError])
def test_a_pool_is_closed_though_not_all_could_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: type[Exception] | None
) -> None:
    monkeypatch.setattr(file_transfer, "MAX_FILES", 1)
    with pytest.raises(fails or TransferError) as raised:
        kept(tmp_path, monkeypatch, fails)
    told = str(raised.value) if fails is None else "\n".join(raised.value.__notes__)
    assert "more files than max_files=" in told


async def test_keeping_ends_in_time_where_the_program_is_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, late = asyncio.get_running_loop(), threading.Event()

    def slowly(*_: Any) -> None:
        """End when the time to keep files, which began before, is over."""
        loop.call_soon_threadsafe(loop.call_later, file_transfer.KEEP_S, late.set)
        late.wait()

    monkeypatch.setattr(file_transfer, "KEEP_S", 0.1)
    monkeypatch.setattr(file_transfer, "_write", slowly)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(asyncio.CancelledError) as raised:
        async with Pool(provider=Local(), keep="outputs", console="silent") as pool:
            await pool.run(write("outputs"))
            raise asyncio.CancelledError
    assert "not all of keep='outputs' came within 0.1 s" in "\n".join(raised.value.__notes__)


def test_a_pool_without_async_fetches_and_pushes(tmp_path: Path) -> None:
    (tmp_path / "name").write_text("pushed")
    with Pool(provider=Local(), console="silent") as pool:
        pool.push(tmp_path / "name")
        assert pool.run(read("name")) == "pushed"
        (path,) = pool.fetch("name", to=tmp_path / "back")
    assert path.read_text() == "pushed"


@compute
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


async def test_tasks_of_the_pool_run_as_ever_while_files_come(pool: Pool, tmp_path: Path) -> None:
    await pool.broadcast(write("beside"))
    fetching = asyncio.ensure_future(pool.fetch("beside", to=tmp_path))
    assert [each async for each in pool.stream(numbers(200))] == [*range(200)]
    assert await pool.map(lambda n: n, range(500)) == [*range(500)]
    assert len(await fetching) == 8


async def test_a_node_that_has_no_work_stays_while_files_come_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, done = asyncio.Event(), threading.Event(), file_transfer._write
    loop = asyncio.get_running_loop()

    def waits(*given: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        go.wait()
        done(*given)

    monkeypatch.setattr(file_transfer, "_write", waits)
    try:
        async with asyncio.timeout(60), Pool(nodes=Nodes(max=2, scale="load", idle=0.5), console="silent") as pool:
            pool.resize(2)
            await pool.broadcast(write("log", "said"))
            fetching = asyncio.create_task(pool.fetch("log/a.txt", to=tmp_path, on=1))
            await begun.wait()
            busy = next(node.node for node in pool.snapshot().nodes if node.rank == 1)
            pool.resize(0)
            while len(pool.snapshot().nodes) > 1:  # the newest would be the first to leave
                await asyncio.sleep(0.01)
            assert [node.node for node in pool.snapshot().nodes] == [busy]
            go.set()
            assert await fetching == [tmp_path / "node-1/log/a.txt"]
            while pool.snapshot().nodes:
                await asyncio.sleep(0.01)
    finally:
        go.set()


async def test_a_pool_that_keeps_nothing_needs_no_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    async with Pool(provider=Local(), console="silent") as pool:
        assert isinstance(await pool.run(write(str(tmp_path))), int)


@compute
def mark() -> int:
    Path("mark.txt").write_text(str(os.getppid()))
    return os.getppid()


async def test_node_that_leaves_keeps_its_files_apart_and_ranks_are_those_of_tasks(tmp_path: Path) -> None:
    """FETCH-5, SEATS-1."""
    async with Pool(provider=Local(), nodes=Nodes(2, min=1, max=2), console="silent") as pool:
        await pool.run(do_nothing(), on=1)
        marks = await pool.broadcast(mark())
        jobs = [pool.submit(wait(), on=rank) for rank in range(2)]
        pool.resize(1)
        while not (left := [node for node in pool.snapshot().nodes if node.state == "draining"]):
            await asyncio.sleep(0)
        (stays,) = [node for node in pool.snapshot().nodes if node not in left]
        assert (stays.rank, left[0].rank) == (0, None)
        fetched = await pool.fetch("mark.txt", to=tmp_path)
        assert fetched == [tmp_path / "node-0/mark.txt", tmp_path / f"node-id-{left[0].node}/mark.txt"]
        assert sorted(int(path.read_text()) for path in fetched) == sorted(marks)
        (alone,) = await pool.fetch("mark.txt", to=tmp_path / "alone", on=0)
        assert alone.read_text() == fetched[0].read_text()
        for job in jobs:
            job.cancel()


async def test_replacement_does_not_overwrite_files_of_the_lost_node(tmp_path: Path) -> None:
    """FETCH-5."""
    async with asyncio.timeout(60), Pool(provider=Local(), nodes=1, console="silent") as pool:
        (lost,) = await pool.broadcast(mark())
        (first,) = await pool.fetch("mark.txt", to=tmp_path)
        assert await pool.fetch("mark.txt", to=tmp_path) == [first]
        os.kill(lost, signal.SIGKILL)
        while (new := await pool.run(mark())) == lost:
            pass
        (second,) = await pool.fetch("mark.txt", to=tmp_path)
        assert (int(first.read_text()), int(second.read_text())) == (lost, new)
        (node,) = [each.node for each in pool.snapshot().nodes if each.rank == 0]
        assert (first, second) == (tmp_path / "node-0/mark.txt", tmp_path / f"node-id-{node}/mark.txt")


def test_one_name_for_each_file_falls_without_its_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FILES-1"""
    monkeypatch.setattr(FileWriter, "_check_name", lambda _: None)
    with pytest.raises(pytest.fail.Exception):
        test_two_names_for_one_path_are_refused(tmp_path)


def test_two_names_for_one_path_are_refused(tmp_path: Path) -> None:
    """FILES-1, where a link plays a disk on which `a` and `A` are one name."""
    writer = FileWriter(tmp_path)
    for part in (("file", "a/x", 1, False), b"1", ("end",)):
        writer.write(part)
    (tmp_path / "A").symlink_to("a")
    writer.write(("file", "A/x", 1, False))
    writer.write(b"2")
    with pytest.raises(FileExistsError):
        writer.write(("end",))
    writer.close()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["x"]
    assert (tmp_path / "a/x").read_text() == "1"
