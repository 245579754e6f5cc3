"""A slot: a state copied into shared memory, and back, whatever it is and however it grows."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np
import pytest

from outrider.engine.api.errors import CheckpointError
from outrider.engine.checkpoint.records import Damaged
from outrider.engine.checkpoint.slot import Slot, restored
from outrider.engine.checkpoint.snapshot import CopyMemory, Snapshot
from outrider.engine.node.stored_blobs import part_digest


def left(slot: Slot, state: Any) -> tuple[int, int]:
    slot.begin()
    return slot.finish(Snapshot(state, slot), 0)


def found(slot: Slot, size_bytes: int, into: Any = None) -> Any:
    flags, prot = mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE
    return restored(mmap.mmap(slot.fd, 0, flags=flags, prot=prot), size_bytes, into)


def test_arrays_and_objects_come_back_and_are_writable() -> None:
    slot = Slot()
    for size in (10, 5_000, 5_000, 2, 60_000, 0):
        state = {"a": np.arange(size, dtype=np.float32), "b": [1, "two"], "c": np.full((size, 3), 7)}
        size_bytes, told = left(slot, state)
        with mmap.mmap(slot.fd, 0) as content:
            assert part_digest(content, size_bytes) == told
        back = found(slot, size_bytes)
        assert back["b"] == [1, "two"]
        assert np.array_equal(back["a"], state["a"])
        assert np.array_equal(back["c"], state["c"])
        back["c"][:1] = 0
        assert np.array_equal(found(slot, size_bytes)["c"], state["c"]), "what is changed is the reader's own"


def test_the_second_state_of_a_size_is_copied_to_its_place_at_once() -> None:
    slot, state = Slot(), {"a": np.ones(100_000)}
    left(slot, state)
    fd = slot.fd
    left(slot, state)
    assert slot.fd == fd
    assert slot.kept == {}


def test_a_slot_takes_as_much_memory_as_its_state() -> None:
    for state in ({"a": np.ones(100_000)}, {"a": bytes(800_000)}, [np.ones(50_000), bytes(400_000)]):
        slot = Slot()
        for _ in range(2):
            size_bytes, _ = left(slot, state)
            assert size_bytes < 810_000


def test_a_part_that_is_cut_off_or_not_one_is_refused() -> None:
    slot = Slot()
    size_bytes, _ = left(slot, {"a": np.ones(100_000)})
    for wrong in (size_bytes - 8, 64, 70):
        with pytest.raises(CheckpointError):
            found(slot, wrong)


def test_a_change_of_any_byte_changes_the_digest() -> None:
    slot = Slot()
    size_bytes, told = left(slot, {"a": np.zeros(100_000)})
    for at in (64, 100_000, 600_000, size_bytes - 1):
        os.pwrite(slot.fd, bytes([os.pread(slot.fd, 1, at)[0] ^ 1]), at)
        with mmap.mmap(slot.fd, 0) as content:
            assert part_digest(content, size_bytes) != told
        os.pwrite(slot.fd, bytes([os.pread(slot.fd, 1, at)[0] ^ 1]), at)


def test_a_page_that_is_lost_changes_the_digest_also_where_all_numbers_are_the_same() -> None:
    slot = Slot()
    size_bytes, told = left(slot, {"a": np.ones(100_000)})
    os.pwrite(slot.fd, bytes(4096), 8192)
    with mmap.mmap(slot.fd, 0) as content:
        assert part_digest(content, size_bytes) != told


@pytest.mark.parametrize("size", [1, 64, 4_000, 4_096, 4_100, 50_000, 200_000])
def test_nodes_compute_the_same_digest_without_numpy(size: int) -> None:
    slot = Slot()
    size_bytes, told = left(slot, {"a": np.random.default_rng(size).random(size)})
    with mmap.mmap(slot.fd, 0) as content:
        assert part_digest(content, size_bytes) == told


def test_a_slot_is_taken_until_its_node_frees_it() -> None:
    slot = Slot()
    assert slot.free
    left(slot, "state")
    assert slot.free
    fd = slot.take()
    assert not slot.free
    os.pwrite(fd, b"\x00", 0)
    os.close(fd)
    assert slot.free


def test_tensors_come_back_as_they_were() -> None:
    torch = pytest.importorskip("torch")
    slot = Slot()
    model = torch.nn.Linear(50, 300)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(4, 50)).sum().backward()
        optimizer.step()
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "empty": torch.empty(0, 4)}
        state["half"] = torch.randn(7, 3).bfloat16().t()
        size_bytes, _ = left(slot, state)
        back = found(slot, size_bytes)
        assert all(torch.equal(back["model"][name], value) for name, value in model.state_dict().items())
        assert torch.equal(back["half"], state["half"])
        assert back["empty"].shape == (0, 4)
        target = {"model": torch.nn.Linear(50, 300).state_dict()}
        assert found(slot, size_bytes, target)["model"]["weight"] is target["model"]["weight"]
        assert torch.equal(target["model"]["weight"], model.weight)
    torch.nn.Linear(50, 300).load_state_dict(back["model"])


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_state_in_memory_can_be_written_as_the_state_itself(kind: str) -> None:
    state: Any = {"a": np.arange(60_000, dtype=np.float32), "b": [1, "two"], "c": np.full((5_000, 3), 7)}
    if kind == "tensors":
        torch = pytest.importorskip("torch")
        state["t"], state["h"] = torch.randn(90, 50), torch.randn(7, 3).bfloat16().t()
    slot, whole = Slot(), Snapshot(state, CopyMemory())
    for _ in range(2):  # the second time copied to its place at once
        size_bytes, _ = left(slot, state)
        kept = slot.snapshot(size_bytes)
        assert kept is not None
        for snapshot in (whole, kept):
            snapshot.hash()
        assert kept.entries == whole.entries
        for index in range(len(whole.entries)):
            assert bytes(kept.payload(index)) == bytes(whole.payload(index))
    del kept
    slot.close()
    assert slot.snapshot(size_bytes) is None


def test_memory_without_a_state_is_refused() -> None:
    slot = Slot()
    slot.reserve(10_000)
    with pytest.raises(Damaged):
        slot.snapshot(10_000)


@pytest.mark.parametrize(
    ("load", "ranks"), [(0.0, 4), (7.9, 4), (8.0, 4), (0.0, 5)], ids=["idle", "nearly busy", "busy", "many ranks"]
)
def test_the_digest_that_is_taken_while_copying_is_that_of_the_whole(
    load: float, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)})
    torch = pytest.importorskip("torch")
    slot, threads = Slot(ranks), torch.get_num_threads()
    large, small = torch.randn(1_000_000), torch.nn.Parameter(torch.randn(100, 70))
    states = [
        {"large": large, "small": small, "turned": torch.randn(900, 800).t(), "array": np.arange(300_000)},
        {"large": large, "small": small, "turned": torch.randn(900, 800).t(), "array": np.arange(300_000)},
        {"large": large.bfloat16(), "small": small, "array": np.arange(200_000), "none": torch.empty(0)},
        {"large": large, "again": large[:50_000], "small": small.detach(), "array": [np.arange(100_000)] * 2},
        {"small": small, "sparse": torch.eye(300).to_sparse(), "large": large},
        {"small": small, "sparse": torch.eye(300), "large": large},
    ]
    try:
        for number, state in enumerate(states * 4):
            torch.set_num_threads(1 if number < 2 * len(states) else 2)
            large += 1
            with torch.no_grad():
                small += 1
            size_bytes, told = left(slot, state)
            assert (slot._sums is not None) == ((load >= 8 or ranks > 4) and number > 0)
            with mmap.mmap(slot.fd, 0) as content:
                assert part_digest(content, size_bytes) == told
            back = found(slot, size_bytes)
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    assert type(back[name]) is type(value)
                    assert back[name].requires_grad == value.requires_grad
                    assert torch.equal(back[name].to_dense(), value.to_dense())
                else:
                    assert np.array_equal(back[name], value)
    finally:
        torch.set_num_threads(threads)


def test_a_state_that_is_saved_again_gets_neither_new_memory_nor_a_new_record() -> None:
    torch = pytest.importorskip("torch")
    slot, state = Slot(), {f"t{number}": torch.randn(3_000) for number in range(50)}
    for _ in range(2):
        left(slot, state)
    fd, record, known = slot.fd, slot._recorded[1], dict(slot.known)
    left(slot, state)
    assert (slot.fd, slot._recorded[1]) == (fd, record)
    assert slot._recorded[1] is record
    assert len(known) == 50
    assert all(slot.known[index] is each for index, each in known.items())
