"""Ranks are killed at any instant and nothing that was complete is lost. `killed.py` says how."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("killed.py")
SEEDS = range(int(os.environ.get("OUTRIDER_KILL_SEEDS", "10")))


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory where there is such a place: a disk that is flushed slows the trainings down, not the killing."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    made = tempfile.mkdtemp(dir=memory)
    yield Path(made)
    shutil.rmtree(made)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_at_any_instant(folder: Path, seed: int) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, str(seed)], capture_output=True, text=True, timeout=400, check=False
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["killed"] >= 2
    assert report["resumed"] >= 1
