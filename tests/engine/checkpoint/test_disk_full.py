"""A disk that is full, and becomes full at any byte: the error says so, and older checkpoints stay."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import CheckpointError, checkpoint

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


def test_full_disks_are_said_and_older_checkpoints_stay(disk: Path) -> None:
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
        saving = checkpoint("run", root=disk, timeout=3)
        saving.load()
        saving.save(1, {"rank": rank})
        saving.wait()
        saving.save(2, {"rank": rank, "large": np.full(200_000 if rank == 1 else 10, rank)})

    with pytest.raises(CheckpointError, match=r"No space left|not complete"):
        cluster.broadcast(2, rank_function)
    assert checkpoint("run", root=disk).steps() == [1]
    loaded = cluster.broadcast(2, lambda rank: checkpoint("run", root=disk).load())
    assert loaded == [(1, {"rank": 0}), (1, {"rank": 1})]
