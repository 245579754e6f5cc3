"""Values of another process on this computer, mapped instead of copied."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from outrider.engine.serialization import payload
from outrider.engine.serialization.payload import Blob, map_shared


@pytest.fixture
def shared(tmp_path: Path) -> str:
    file = tmp_path / "blob"
    file.write_bytes(b"0123456789" * 1000)
    return str(file)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_a_thousand_values_held_at_once_leave_descriptors_for_the_program(shared: str) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    before = _open_files()
    resource.setrlimit(resource.RLIMIT_NOFILE, (before + 200, limits[1]))
    try:
        held = [map_shared(shared) for _ in range(1000)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert _open_files() <= before + 100
    assert {bytes(each) for each in held} == {b"0123456789" * 1000}


def test_mapped_or_copied_a_value_is_writable_and_its_own(shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = map_shared(shared)
    monkeypatch.setattr(payload, "MAPPED_AT_MOST", 0)
    copied = map_shared(shared)
    for each in (mapped, copied):
        each[:2] = b"ab"
        assert each[:4] == b"ab23"
    assert Path(shared).read_bytes()[:4] == b"0123"


def test_a_blob_that_is_shared_when_nobody_needs_it_any_more_keeps_no_descriptor() -> None:
    blob = Blob("late", [b"x" * 100], 100)
    blob.close()
    path = Path(blob.share())  # by a thread that was given up
    assert path.exists()
    del blob
    assert not path.exists()
