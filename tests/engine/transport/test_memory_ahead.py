"""Memory that is there before it is written to, in pages of the size that the kernel gives sooner."""

from __future__ import annotations

import pytest

from outrider.engine.transport import channels
from outrider.engine.transport.channels import ALLOCATED_BYTES, READY_BYTES, MemoryAhead, PageChoice
from outrider.engine.wire import large_copy

FAST_S, SMALL_S, SLOW_S = 0.1e-9, 0.5e-9, 2.5e-9  # for a byte


@pytest.mark.parametrize(
    ("huge_s", "small_s", "huge"),
    [(FAST_S, SMALL_S, True), (SLOW_S, SMALL_S, False), (SLOW_S, SLOW_S + 0.4e-9, True)],
    ids=["as usual", "a guest whose hypervisor looks for pages", "both are slow"],
)
def test_pages_are_of_the_size_that_is_given_sooner(huge_s: float, small_s: float, huge: bool) -> None:
    """AHEAD-3"""
    choice = PageChoice()
    for _ in range(9):
        choice.took(ALLOCATED_BYTES, ALLOCATED_BYTES * (huge_s if choice.huge else small_s))
    assert choice.huge is huge


def test_huge_pages_that_become_slow_are_given_up() -> None:
    choice = PageChoice()
    for each_s in [FAST_S] * 20 + [SLOW_S]:
        assert choice.huge
        choice.took(ALLOCATED_BYTES, ALLOCATED_BYTES * each_s)
    assert not choice.huge


@pytest.fixture
def made_ready(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what the kernel was asked for, at once instead of in a thread."""
    sizes = list[int]()
    monkeypatch.setattr(channels, "hand", lambda work: work())
    monkeypatch.setattr(large_copy, "make_ready", lambda memory: sizes.append(len(memory)))
    return sizes


def test_memory_is_asked_for_a_bounded_part_ahead(made_ready: list[int]) -> None:
    memory = MemoryAhead(4 * READY_BYTES + 1)
    memory.written(100)
    assert READY_BYTES <= sum(made_ready) <= READY_BYTES + ALLOCATED_BYTES
    memory.written(2 * READY_BYTES)
    assert sum(made_ready) <= 3 * READY_BYTES + ALLOCATED_BYTES
    for at in range(2 * READY_BYTES, len(memory.buffer) + 1, 1 << 18):
        memory.written(at)
    assert sum(made_ready) <= len(memory.buffer)
    assert len(memory.buffer) == 4 * READY_BYTES + 1


def test_what_was_written_already_is_not_asked_for(made_ready: list[int]) -> None:
    memory = MemoryAhead(4 * READY_BYTES)
    memory.written(3 * READY_BYTES)
    assert sum(made_ready) == READY_BYTES


def test_a_small_blob_takes_no_thread(made_ready: list[int]) -> None:
    memory = MemoryAhead(ALLOCATED_BYTES)
    memory.written(1)
    assert made_ready == []


def test_what_was_written_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "hand", lambda work: work())
    memory = MemoryAhead(3 * ALLOCATED_BYTES)
    memory.buffer[: 2 * ALLOCATED_BYTES] = b"x" * (2 * ALLOCATED_BYTES)
    memory.written(1)
    assert bytes(memory.buffer) == b"x" * (2 * ALLOCATED_BYTES) + bytes(ALLOCATED_BYTES)


def test_the_size_of_pages_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """AHEAD-3"""
    monkeypatch.setattr(channels, "SLOW", 1.0)
    with pytest.raises(AssertionError):
        test_pages_are_of_the_size_that_is_given_sooner(SLOW_S, SMALL_S, huge=False)
