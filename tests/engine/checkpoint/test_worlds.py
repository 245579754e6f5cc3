"""Several ranks, and other numbers of them: what each gets, and that all of them get the same checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider import CheckpointError, CheckpointFenced, checkpoint
from outrider.engine.checkpoint import checkpoint as module
from outrider.engine.checkpoint.agreement import lead_s
from outrider.engine.checkpoint.checkpoint import Checkpoint
from outrider.engine.checkpoint.store import FileStore

SHARED = np.arange(50_000.0)


def train(root: str, steps: int, **options: Any) -> Callable[[int], tuple[int, Any]]:
    """A rank: something that all ranks have, something of its own, large and small."""

    def rank_function(rank: int) -> tuple[int, Any]:
        saving = checkpoint("run", root=root, timeout=60, **options)
        start, state = saving.load()
        for step in range(start + 1, start + steps + 1):
            own = {"rank": rank, "array": np.full(3_000, rank), "tensor": torch.full((2_000,), float(rank))}
            saving.save(step, {"step": step, "shared": SHARED * step, "own": own})
        return start, state

    return rank_function


def is_of(state: Any, step: int, rank: int) -> bool:
    own = state["own"]
    return bool(
        state["step"] == step
        and np.array_equal(state["shared"], SHARED * step)
        and own["rank"] == rank
        and np.array_equal(own["array"], np.full(3_000, rank))
        and torch.equal(own["tensor"], torch.full((2_000,), float(rank)))
    )


def test_each_rank_gets_what_it_saved(cluster: Any, any_root: str) -> None:
    cluster.broadcast(4, train(any_root, 7, every=3))
    loaded = cluster.broadcast(4, train(any_root, 0))
    assert [step for step, _ in loaded] == [6] * 4
    assert all(is_of(state, 6, rank) for rank, (_, state) in enumerate(loaded))


def test_other_numbers_of_ranks_get_what_the_guide_says(cluster: Any, any_root: str) -> None:
    """4 -> 2 -> 3"""
    cluster.broadcast(4, train(any_root, 5))
    two = cluster.broadcast(2, train(any_root, 5))
    assert [step for step, _ in two] == [5, 5]
    assert all(is_of(state, 5, rank) for rank, (_, state) in enumerate(two))
    three = cluster.broadcast(3, train(any_root, 1))
    assert [step for step, _ in three] == [10] * 3
    assert all(is_of(state, 10, rank % 2) for rank, (_, state) in enumerate(three))
    (alone,) = cluster.broadcast(1, train(any_root, 0))
    assert is_of(alone[1], 11, 0)


def test_content_common_to_all_ranks_is_written_once(cluster: Any, root: str, tmp_path: Path) -> None:
    def rank_function(rank: int) -> None:
        checkpoint("run", root=root, timeout=60).save(1, {str(index): SHARED + index for index in range(8)})

    cluster.broadcast(4, rank_function)
    sizes = [path.stat().st_size for path in tmp_path.rglob("*.distcp")]
    assert sum(sizes) < 8.1 * SHARED.nbytes
    assert len(sizes) == 4
    assert max(sizes) < 2.1 * SHARED.nbytes


def test_the_end_of_a_task_waits_until_its_checkpoint_is_complete(cluster: Any, root: str) -> None:
    cluster.broadcast(3, train(root, 1))
    assert checkpoint("run", root=root).steps() == [1]


def test_a_step_that_all_ranks_save_again_is_newer_on_each(cluster: Any, root: str) -> None:
    def rank_function(rank: int) -> None:
        saving = checkpoint("run", root=root, timeout=60)
        for state in ("first", "second"):
            saving.save(3, (rank, state), force=True)

    cluster.broadcast(3, rank_function)
    loaded = cluster.broadcast(3, lambda rank: checkpoint("run", root=root).load())
    assert [each.state for each in loaded] == [(rank, "second") for rank in range(3)]


def test_a_rank_that_does_not_save_is_named(cluster: Any, root: str) -> None:
    def rank_function(rank: int) -> None:
        saving = checkpoint("run", root=root, timeout=4)
        if rank != 2:
            saving.save(1, rank)

    with pytest.raises(CheckpointError, match=r"rank 2 did not save it|has not completed it"):
        cluster.broadcast(3, rank_function)
    assert checkpoint("run", root=root).steps() == []


def test_a_rank_that_does_not_load_is_named(cluster: Any, root: str) -> None:
    def rank_function(rank: int) -> None:
        if rank != 1:
            checkpoint("run", root=root, timeout=0.5).load()

    cluster.broadcast(2, train(root, 1))
    with pytest.raises(CheckpointError, match=r"rank 1 did not read step 1"):
        cluster.broadcast(2, rank_function)


def test_rank_0_that_does_not_come_is_named(cluster: Any, root: str) -> None:
    def rank_function(rank: int) -> None:
        if rank:
            checkpoint("run", root=root, timeout=0.2).load()

    with pytest.raises(CheckpointError, match="Rank 0 did not open"):
        cluster.broadcast(2, rank_function)


def test_a_rank_that_stops_early_loses_what_was_not_complete(cluster: Any, root: str) -> None:
    def rank_function(rank: int) -> None:
        saving = checkpoint("run", root=root, timeout=60)
        for step in range(1, 4 if rank else 6):
            saving.save(step, step)
        saving.close(failed=True)

    cluster.broadcast(2, rank_function)
    assert max(checkpoint("run", root=root).steps(), default=0) <= 3
    assert [step for step, _ in cluster.broadcast(2, train(root, 1))] in ([3, 3], [2, 2], [1, 1], [0, 0])


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:The checkpoint of 'run':RuntimeWarning")
@pytest.mark.parametrize("ranks", [2, 4])
def test_checkpoint_that_one_rank_cannot_read_is_used_by_no_rank(
    cluster: Any, root: str, tmp_path: Path, ranks: int
) -> None:
    """The damage is in what rank 1 alone reads."""
    cluster.broadcast(4, train(root, 3))
    for path in tmp_path.glob("checkpoints/run/step-000000000003.*/rank-00001.*.json"):
        path.write_bytes(b"{}")
    loaded = cluster.broadcast(ranks, train(root, 0))
    assert [step for step, _ in loaded] == [2] * ranks
    assert all(is_of(state, 2, rank) for rank, (_, state) in enumerate(loaded))


@pytest.mark.filterwarnings("ignore:The checkpoint of 'run':RuntimeWarning")
def test_damage_seen_by_one_rank_makes_all_ranks_skip_the_checkpoint(cluster: Any, root: str, tmp_path: Path) -> None:
    cluster.broadcast(4, train(root, 3))
    (folder,) = tmp_path.glob("checkpoints/run/step-000000000003.*")
    own = [path for path in folder.glob("rank-00003-*.distcp") if path.stat().st_size < SHARED.nbytes]
    assert own
    for path in own:
        path.write_bytes(bytes(path.stat().st_size))
    assert [step for step, _ in cluster.broadcast(4, train(root, 0))] == [2] * 4


@pytest.mark.filterwarnings("ignore:The checkpoint of 'run':RuntimeWarning")
def test_all_ranks_raise_when_all_checkpoints_are_damaged(cluster: Any, root: str, tmp_path: Path) -> None:
    cluster.broadcast(2, train(root, 2))
    for path in tmp_path.rglob("*.distcp"):
        path.write_bytes(b"")
    said: list[str] = []

    def rank_function(rank: int) -> None:
        with pytest.raises(CheckpointError, match="all of them are damaged"):
            checkpoint("run", root=root, timeout=60).load()
        said.append(str(rank))

    cluster.broadcast(2, rank_function)
    assert sorted(said) == ["0", "1"]


@pytest.mark.filterwarnings("ignore:.*is damaged:RuntimeWarning")
def test_ranks_take_over_from_a_damaged_term(cluster: Any, root: str, tmp_path: Path) -> None:
    cluster.broadcast(2, train(root, 2))
    for path in tmp_path.glob("checkpoints/run/terms/*.json"):
        path.write_bytes(b"")
    assert [step for step, _ in cluster.broadcast(2, train(root, 1))] == [2, 2]
    assert [step for step, _ in cluster.broadcast(2, train(root, 0))] == [3, 3]


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"at": 3}', b"[]", b"[" * 100_000])
def test_damaged_decision_is_named(cluster: Any, root: str, damage: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.broadcast(2, train(root, 2))
    get, errors = FileStore.get, list[str]()

    def damaged(self: FileStore, key: str) -> bytes:
        data = get(self, key)
        return damage if key.endswith("/decision.json") else data

    def rank_function(rank: int) -> None:
        loading = checkpoint("run", root=root, timeout=60)
        if rank:
            with pytest.raises(CheckpointError, match=r"load-0000/decision.json, by which ranks agree, is damaged"):
                loading.load()
            errors.append("raised")
        else:
            loading.load()

    monkeypatch.setattr(FileStore, "get", damaged)
    cluster.broadcast(2, rank_function)
    assert errors == ["raised"]


# --- generations ------------------------------------------------------------------------------------------------------


def opened(root: str, saving: list[Checkpoint]) -> Callable[[int], None]:
    def rank_function(rank: int) -> None:
        mine = checkpoint("run", root=root, timeout=5)
        mine.load()
        mine.save(1, ("old", rank))
        mine.wait()
        saving.append(mine)

    return rank_function


def test_an_old_generation_completes_nothing_over_a_new_one(cluster: Any, root: str) -> None:
    """Its ranks were frozen, and come back while the new ones are at work."""
    old: list[Checkpoint] = []

    def first(rank: int) -> None:
        mine = checkpoint("run", root=root, timeout=60)
        mine.load()
        mine.save(1, "good")
        mine.wait()
        old.append(mine)

    cluster.broadcast(2, first)
    for each in old:  # their tasks never ended
        each._closed = False

    def second(rank: int) -> None:
        mine = checkpoint("run", root=root, timeout=60)
        assert mine.load() == (1, "good")
        if rank == 0:
            for each in old:
                each.save(9, "of a world that is gone")
            for each in old:
                with pytest.raises(CheckpointFenced, match=f"generation 2 of job 1 in pool {cluster.pool}"):
                    each.wait()
        mine.save(2, "new")

    cluster.broadcast(2, second)
    assert checkpoint("run", root=root).steps() == [2, 1]
    assert cluster.broadcast(2, train(root, 0))[0] == (2, "new")


def test_an_old_generation_that_comes_late_does_not_begin(cluster: Any, root: str) -> None:
    cluster.generation = 1
    cluster.broadcast(2, train(root, 1))  # generation 2

    def late() -> None:
        checkpoint("run", root=root, timeout=60).load()

    for rank in (0, 1):
        with pytest.raises(CheckpointFenced, match="generation 2"):
            cluster.as_rank(rank, 2, late, generation=1)


def test_an_attempt_of_a_task_alone_gives_way_to_the_next(cluster: Any, root: str) -> None:
    kept: list[Checkpoint] = []

    def attempt() -> Any:
        mine = checkpoint("run", root=root, timeout=60)
        kept.append(mine)
        loaded = mine.load()
        mine.save(loaded.step + 1, loaded.step)
        return loaded

    assert cluster.as_rank(0, 1, attempt, attempt=1) == (0, None)
    assert cluster.as_rank(0, 1, attempt, attempt=2) == (1, 0)
    kept[0]._closed = False
    kept[0].save(7, "late")
    with pytest.raises(CheckpointFenced):
        kept[0].wait()
    with pytest.raises(CheckpointFenced):
        cluster.as_rank(0, 1, attempt, attempt=1)


def test_a_rank_that_is_run_again_alone_goes_on_with_its_world(cluster: Any, root: str) -> None:
    """Ranks that do not wait for each other: on_loss="resend"."""
    arrived = threading.Barrier(2)
    died = threading.Event()

    def rank_function(rank: int) -> Any:
        saving = checkpoint("run", root=root, timeout=60)
        start, _ = saving.load()
        for step in range(start + 1, 7):
            saving.save(step, (rank, step))
            if step == 3:
                saving.wait()
                arrived.wait(60)
                if rank == 1:
                    saving.save(4, "its last word")
                    saving.close(failed=True)
                    died.set()
                    return None
        return start

    def again(rank: int) -> Any:
        if rank == 1:
            rank_function(1)
            return cluster.as_rank(1, 2, lambda: resumed(), attempt=2)
        return rank_function(rank)

    def resumed() -> Any:
        saving = checkpoint("run", root=root, timeout=60)
        start, state = saving.load()
        for step in range(start + 1, 7):
            saving.save(step, (1, step))
        return start, state

    _, (start, state) = cluster.broadcast(2, again)
    assert start in (3, 4)  # where its world was by then
    assert state in ((1, 3), "its last word")
    assert checkpoint("run", root=root).steps()[0] == 6
    assert [state for _, state in cluster.broadcast(2, lambda rank: checkpoint("run", root=root).load())] == [
        (0, 6),
        (1, 6),
    ]


def test_two_broadcasts_of_one_pool_follow_each_other(cluster: Any, root: str) -> None:
    cluster.broadcast(2, train(root, 2), job=1)
    cluster.generation = 0
    loaded = cluster.broadcast(2, train(root, 2), job=2)
    assert [step for step, _ in loaded] == [2, 2]


# --- time -------------------------------------------------------------------------------------------------------------


def test_ranks_save_the_same_steps_when_time_says_which(
    cluster: Any, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy computer a rank may read later than is thought which step that is, so it is announced earlier then."""
    for ahead_s in (lead_s(FileStore.poll_s), 5.0, 30.0):
        monkeypatch.setattr(module, "lead_s", lambda _, ahead_s=ahead_s: ahead_s)
        saved = saved_in_step(cluster, f"{root}/{ahead_s}")
        if saved[0] == saved[1] == saved[2]:
            break
    assert saved[0] == saved[1] == saved[2]
    assert checkpoint("run", root=f"{root}/{ahead_s}").steps()[:2] == saved[0][:-3:-1]


def saved_in_step(cluster: Any, root: str) -> list[list[int]]:
    """The steps that three ranks save: two, or until they differ. They are in step, as ranks with a collective are."""
    together = threading.Barrier(3)
    stop = threading.Event()
    saved: list[list[int]] = [[], [], []]

    def rank_function(rank: int) -> None:
        saving = checkpoint("run", root=root, every=0.3, timeout=60)
        saving.load()
        for step in range(1, 1_000_000):
            if together.wait(60) == 0 and (len(saved[0]) >= 2 or not saved[0] == saved[1] == saved[2]):
                stop.set()
            together.wait(60)
            if stop.is_set():
                saving.close(failed=not saved[0] == saved[1] == saved[2])
                return
            if saving.save(step, rank):
                saved[rank].append(step)

    cluster.broadcast(3, rank_function)
    return saved
