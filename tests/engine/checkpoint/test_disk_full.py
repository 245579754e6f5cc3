"""A disk that is full, and becomes full at any byte: the error says so, and older checkpoints stay."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import CheckpointError, checkpoint, instance_info
from outrider.engine.checkpoint.store import FileStore

DISK_BYTES = 1024 * 1024


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small disk needs root, to mount one")
    yield folder
    subprocess.run(["umount", folder], check=True)


def free(disk: Path) -> int:
    facts = os.statvfs(disk)
    return facts.f_bavail * facts.f_frsize


def leave(disk: Path, size: int) -> None:
    """So many bytes free."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    ballast.write_bytes(bytes(max(0, free(disk) - size)))


def test_full_disk_is_reported_and_older_checkpoints_stay(disk: Path) -> None:
    state = {"weights": np.arange(8_000)}  # 64 kB
    saving = checkpoint("run", root=disk, keep=2)
    for step in (1, 2):
        saving.save(step, state)
    saving.wait()
    saving.close()
    failed = 0
    for index, room in enumerate(range(0, 100_000, 12_000)):
        steps = checkpoint("run", root=disk).steps()
        leave(disk, room)
        before = free(disk)
        try:
            with checkpoint("run", root=disk, keep=2) as saving:
                saving.save(10 + index, state)
        except CheckpointError as error:
            failed += error.full
            unchanged = checkpoint("run", root=disk).steps() == steps
            no_rest = free(disk) >= before - 8192  # what could not be finished takes no room
        else:
            unchanged = no_rest = True
        assert (unchanged, no_rest) == (True, True)
        (disk / "ballast").unlink()
        assert np.array_equal(checkpoint("run", root=disk).load().state["weights"], state["weights"])
    assert failed >= 3
    with checkpoint("run", root=disk) as saving:
        saving.save(99, state)
    assert checkpoint("run", root=disk).load().step == 99


def test_one_rank_of_several_finds_no_room(cluster: Any, disk: Path) -> None:
    def rank_function(rank: int) -> None:
        saving = checkpoint("run", root=disk, timeout=8)
        saving.load()
        saving.save(1, {"rank": rank})
        saving.wait()
        saving.save(2, {"rank": rank, "large": np.full(200_000 if rank == 1 else 10, rank)})

    with pytest.raises(CheckpointError, match=r"No space left|not complete"):
        cluster.broadcast(2, rank_function)
    assert checkpoint("run", root=disk).steps() == [1]
    loaded = cluster.broadcast(2, lambda rank: checkpoint("run", root=disk).load())
    assert loaded == [(1, {"rank": 0}), (1, {"rank": 1})]


@pytest.mark.parametrize("rank_that_is_short", [None, 0, 1])
def test_a_load_on_a_full_disk_says_so_and_can_be_tried_again(
    cluster: Any, disk: Path, monkeypatch: pytest.MonkeyPatch, rank_that_is_short: int | None
) -> None:
    """None: before the term has begun. Else as it loads, while the others wait for it."""
    cluster.broadcast(2, lambda rank: saved(disk, rank))
    met, put = set[int](), FileStore._written

    def short(store: FileStore, key: str, pieces: Any) -> Any:
        rank = instance_info().rank
        if rank == rank_that_is_short and "/load-" in key and rank not in met:
            met.add(rank)
            raise OSError(errno.ENOSPC, "No space left on device")
        return put(store, key, pieces)

    monkeypatch.setattr(FileStore, "_written", short)
    if rank_that_is_short is None:
        leave(disk, 0)
        with pytest.raises(CheckpointError, match="free some space there") as caught:
            cluster.broadcast(2, lambda rank: checkpoint("run", root=disk, timeout=4).load())
        assert caught.value.full
        assert not list(disk.rglob(".unfinished-*"))
        (disk / "ballast").unlink()

    def load(rank: int) -> Any:
        saving = checkpoint("run", root=disk, timeout=60)
        try:
            return saving.load()
        except CheckpointError as error:
            if not error.full or rank != rank_that_is_short:
                raise
            return saving.load()

    assert cluster.broadcast(2, load) == [(1, {"rank": 0}), (1, {"rank": 1})]
    assert met == ({rank_that_is_short} - {None})


def saved(disk: Path, rank: int) -> None:
    with checkpoint("run", root=disk, timeout=60) as saving:
        saving.save(1, {"rank": rank})


def folders(disk: Path) -> list[str]:
    return sorted(path.name for path in (disk / "run").iterdir() if path.name.startswith("step-"))


def test_saves_that_fail_leave_no_folders(disk: Path) -> None:
    """Also not those of a writer that was killed before it could tidy up."""
    state = {"weights": np.arange(8_000)}
    with checkpoint("run", root=disk) as saving:
        saving.save(1, state)
    complete = folders(disk)
    for step in range(2, 6):
        leave(disk, 20_000)
        with pytest.raises(CheckpointError, match="No space left"), checkpoint("run", root=disk) as saving:
            saving.save(step, state)
        assert folders(disk) == complete
        (disk / "ballast").unlink()
    (disk / "run" / "step-000000000006.term-00000002").mkdir()  # killed between its folder and its file
    half = disk / "run" / "step-000000000007.term-00000003"
    half.mkdir()
    (half / ".unfinished-0123456789abcdef").write_bytes(b"half of it")
    with checkpoint("run", root=disk, keep=1) as saving:
        saving.save(8, state)
    assert [name[:17] for name in folders(disk)] == ["step-000000000008"]


def test_delete_keeps_a_folder_that_has_other_files(disk: Path) -> None:
    """One rank's part fails and is deleted, at any moment of another rank's."""
    store = FileStore(str(disk / "run"))
    folder = disk / "run" / "step-1"

    def pieces() -> Iterator[bytes]:
        yield b"the first half, "
        store.delete("step-1/rank-1")
        assert folder.is_dir()
        yield b"and the second"

    store.put("step-1/rank-0", pieces())
    store.delete("step-1/rank-1")
    assert store.get("step-1/rank-0") == b"the first half, and the second"
    store.delete("step-1/rank-0")
    assert not folder.exists()


def test_a_folder_that_goes_before_its_first_file_is_made_again(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(str(disk / "run"))
    real, removed = Path.mkdir, []

    def made_and_removed(path: Path, *options: Any, **more: Any) -> None:
        real(path, *options, **more)
        if path.name == "step-1" and len(removed) < 3 and path.exists():
            removed.append(path)
            path.rmdir()  # as the `delete` of another rank does

    monkeypatch.setattr(Path, "mkdir", made_and_removed)
    store.put("step-1/rank-0", [b"whole"])
    assert (store.get("step-1/rank-0"), len(removed)) == (b"whole", 3)
