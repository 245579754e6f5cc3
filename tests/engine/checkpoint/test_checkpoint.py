"""`checkpoint` in a script of its own: what is saved, what is loaded, what is said when that cannot be."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import CheckpointError, CheckpointFenced, OutriderError, SpecError, checkpoint
from outrider.engine.checkpoint.store import FileStore


def train(root: str, steps: int, **options: Any) -> tuple[int, Any]:
    """What a training resumes from that then does so many steps."""
    with checkpoint("run", root=root, **options) as saving:
        start, state = saving.load()
        for step in range(start + 1, start + steps + 1):
            saving.save(step, {"step": step, "weights": np.full(10_000, step)})
    return start, state


def files(tmp_path: Path, pattern: str, step: int | None = None) -> list[Path]:
    folder = "*" if step is None else f"step-{step:012}.term-*"
    return sorted((tmp_path / "checkpoints/run").glob(f"{folder}/{pattern}"))


def test_load_without_checkpoints_returns_step_0(any_root: str) -> None:
    assert train(any_root, 0) == (0, None)


def test_training_resumes_from_the_last_save(any_root: str) -> None:
    train(any_root, 25, every=10)
    step, state = train(any_root, 25, every=10)
    assert step == state["step"] == 20
    assert np.array_equal(state["weights"], np.full(10_000, 20))
    assert train(any_root, 0)[0] == 40


def test_the_newest_ones_are_kept(any_root: str) -> None:
    train(any_root, 9, every=2, keep=2)
    assert checkpoint("run", root=any_root).steps() == [8, 6]


def test_keeping_counts_all_worlds(root: str) -> None:
    for _ in range(3):
        train(root, 2, keep=3)
    assert checkpoint("run", root=root).steps() == [6, 5, 4]


def test_later_run_is_newer_than_an_earlier_one_with_more_steps(root: str) -> None:
    train(root, 50, every=10)
    with checkpoint("run", root=root) as saving:
        saving.save(1, "anew")
    assert checkpoint("run", root=root).load() == (1, "anew")


def test_due_and_save_agree(root: str) -> None:
    saving = checkpoint("run", root=root, every=3)
    due, saved = [], []
    for step in range(1, 10):
        if saving.due(step):
            due.append(step)
        if saving.save(step, step):
            saved.append(step)
    assert due == saved == [3, 6, 9]
    saving.close()


def test_force_saves_between(root: str) -> None:
    with checkpoint("run", root=root, every=1000) as saving:
        assert not saving.save(1, "a")
        assert saving.save(2, "b", force=True)
    assert checkpoint("run", root=root).load() == (2, "b")


def test_a_step_that_is_saved_again_is_newer(any_root: str) -> None:
    with checkpoint("run", root=any_root, every=1) as saving:
        saving.save(2, "before")
        for state in ("first", "second", "third"):
            assert saving.save(3, state, force=True)
    assert checkpoint("run", root=any_root).steps() == [3, 3, 3]
    with checkpoint("run", root=any_root) as later:
        assert later.load() == (3, "third")
        later.save(4, "on")
    assert checkpoint("run", root=any_root).load() == (4, "on")


def test_a_step_that_was_damaged_is_good_when_training_has_reached_it_again(root: str, tmp_path: Path) -> None:
    with checkpoint("run", root=root) as saving:
        saving.save(1, "one")
        saving.save(2, "damaged")
        saving.wait()
        (path,) = files(tmp_path, "*.distcp", step=2)
        path.write_bytes(b"")
        with pytest.warns(RuntimeWarning, match="at step 2 is damaged"):
            assert saving.load() == (1, "one")
        assert saving.save(2, "two")
    assert checkpoint("run", root=root).load() == (2, "two")


def test_every_takes_time_too(root: str) -> None:
    assert not checkpoint("run", root=root, every=timedelta(hours=1)).due(1)
    assert not checkpoint("run", root=root, every=3600.0).due(1)
    eager = checkpoint("run", root=root, every=1e-9)
    assert eager.due(1)


def test_second_load_returns_the_latest_save(root: str) -> None:
    """A training that diverges goes back."""
    with checkpoint("run", root=root, every=5) as saving:
        saving.load()
        for step in range(1, 13):
            saving.save(step, step)
        assert saving.load() == (10, 10)
        assert not saving.save(11, 11)
        assert saving.save(15, 15)


def test_training_goes_on_while_it_is_written(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, go_on = threading.Event(), threading.Event()
    put = FileStore.put

    def slow(store: FileStore, key: str, pieces: Any) -> None:
        writing.set()
        assert go_on.wait(60)
        put(store, key, pieces)

    monkeypatch.setattr(FileStore, "put", slow)
    saving = checkpoint("run", root=root)
    saving.save(1, "state")
    assert writing.wait(60)
    assert saving.steps() == []
    go_on.set()
    saving.wait()
    assert saving.steps() == [1]
    saving.close()


def test_a_save_waits_for_the_one_before(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = []
    put = FileStore.put

    def counted(store: FileStore, key: str, pieces: Any) -> None:
        busy.append(threading.current_thread())
        put(store, key, pieces)
        assert busy.count(threading.current_thread()) == 1
        assert [thread for thread in busy if thread.is_alive()] == [threading.current_thread()]

    monkeypatch.setattr(FileStore, "put", counted)
    with checkpoint("run", root=root) as saving:
        for step in range(1, 6):
            saving.save(step, step)
    assert len(busy) == 5


# --- damage -----------------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 0x10
    path.write_bytes(data)


@pytest.mark.parametrize("pattern", ["*.distcp", "rank-*.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "empty"])
def test_damaged_checkpoint_is_skipped_with_a_warning(root: str, tmp_path: Path, pattern: str, damage: str) -> None:
    train(root, 30, every=10)
    (path,) = files(tmp_path, pattern, step=30)
    match damage:
        case "flip":
            flip(path, 20)
        case "cut":
            path.write_bytes(path.read_bytes()[:-10])
        case "empty":
            path.write_bytes(b"")
        case "gone":
            path.unlink()
    if pattern == "manifest.json" and damage == "gone":  # then it is no checkpoint
        assert train(root, 0)[0] == 20
        return
    with pytest.warns(RuntimeWarning, match="at step 30 is damaged and is skipped"):
        step, state = train(root, 0)
    assert step == state["step"] == 20


def test_no_flipped_bit_of_the_data_is_loaded(root: str, tmp_path: Path) -> None:
    train(root, 2, keep=2)
    (path,) = files(tmp_path, "*.distcp", step=2)
    intact = path.read_bytes()
    for at in [*range(40), *range(40, len(intact), len(intact) // 17), len(intact) - 1]:
        flip(path, at)
        with pytest.warns(RuntimeWarning, match="step 2"):
            assert checkpoint("run", root=root).load().step == 1
        path.write_bytes(intact)
    assert checkpoint("run", root=root).load().step == 2


DAMAGED = {"empty": b"", "cut": b'{"jo', "deep": b"[" * 100_000, "other": b"[]"}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_term_is_taken_over_with_a_warning(root: str, tmp_path: Path, damage: str) -> None:
    train(root, 2)
    (term,) = (tmp_path / "checkpoints/run/terms").glob("*.json")
    term.write_bytes(DAMAGED[damage])
    with pytest.warns(RuntimeWarning, match=rf"terms/{term.name} is damaged .* takes over"):
        assert train(root, 1)[0] == 2
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert train(root, 0)[0] == 3


def test_process_is_fenced_by_a_later_term_that_is_damaged(root: str, tmp_path: Path) -> None:
    with checkpoint("run", root=root) as saving:
        saving.load()
        (tmp_path / "checkpoints/run/terms/00000007.json").write_bytes(b"")
        saving.save(1, {})
        with pytest.raises(CheckpointFenced, match="taken over by another process"):
            saving.wait()


def test_load_raises_when_all_checkpoints_are_damaged(root: str, tmp_path: Path) -> None:
    train(root, 20, every=10)
    for path in files(tmp_path, "*.distcp"):
        path.unlink()
    with pytest.warns(RuntimeWarning), pytest.raises(CheckpointError, match="all of them are damaged") as caught:
        train(root, 10)
    assert caught.value.run == "run"
    assert "checkpoints/run" in caught.value.url


def test_unreadable_storage_does_not_count_as_empty(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(root, 3)
    (path,) = files(tmp_path, "", step=3)
    scandir = os.scandir

    def stale(folder: Any) -> Any:
        if Path(folder) == path:
            raise OSError(errno.ESTALE, "Stale file handle")
        return scandir(folder)

    with monkeypatch.context() as patch, pytest.raises(CheckpointError, match="Stale file handle") as caught:
        patch.setattr(os, "scandir", stale)
        checkpoint("run", root=root).load()
    assert "checkpoints/run" in caught.value.url
    assert train(root, 0)[0] == 3


def test_the_digests_are_those_of_b2sum(root: str, tmp_path: Path) -> None:
    train(root, 1)
    (manifest,) = files(tmp_path, "manifest.json")
    for name, (size, digest) in json.loads(manifest.read_text())["files"].items():
        path = manifest.with_name(name)
        said = subprocess.run(["b2sum", "--length=256", path], capture_output=True, text=True, check=True).stdout
        assert said.split()[0] == digest
        assert path.stat().st_size == size


def test_a_later_format_is_not_guessed_at(root: str, tmp_path: Path) -> None:
    train(root, 1)
    (manifest,) = files(tmp_path, "manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 99}))
    with pytest.raises(CheckpointError, match="format 99"):
        train(root, 1)


# --- two at a time ----------------------------------------------------------------------------------------------------


def test_later_world_takes_over(root: str) -> None:
    first = checkpoint("run", root=root)
    first.save(1, "first")
    first.wait()
    second = checkpoint("run", root=root)
    assert second.load() == (1, "first")
    first.save(2, "late")
    with pytest.raises(CheckpointFenced, match="another process"):
        first.wait()
    second.save(2, "second")
    second.wait()
    assert checkpoint("run", root=root).load() == (2, "second")
    first.close()
    second.close()


def test_steps_does_not_take_the_run_over(root: str) -> None:
    first = checkpoint("run", root=root)
    first.save(1, "first")
    first.wait()
    assert checkpoint("run", root=root).steps() == [1]
    first.save(2, "still")
    first.close()


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_a_save_that_failed_is_raised_by_the_next_and_then_it_goes_on(
    root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saving = checkpoint("run", root=root)
    saving.save(1, "good")
    saving.wait()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        saving.save(2, "lost")
        with pytest.raises(CheckpointError, match=r"No space left on device.*keep fewer") as caught:
            saving.save(3, "not begun")
    assert caught.value.full
    assert caught.value.run == "run"
    assert isinstance(caught.value, OutriderError)
    assert files(tmp_path, "*", step=2) == files(tmp_path, "*", step=3) == []
    assert saving.save(4, "again")
    saving.close()
    assert checkpoint("run", root=root).load() == (4, "again")


def test_closing_raises_what_the_last_save_could_not_do(root: str, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointError, match="checkpoints"), checkpoint("run", root=root) as saving:
        saving.save(1, "state")


@pytest.mark.parametrize("step", [-1, 1.0, 1.5, "3", None])
def test_a_step_that_would_not_be_found_again_is_refused(root: str, step: Any) -> None:
    with checkpoint("run", root=root) as saving:
        for ask in (
            saving.due,
            lambda step: saving.save(step, "state"),
            lambda step: saving.save(step, "", force=True),
        ):
            with pytest.raises(SpecError, match="step takes a whole number, 0 or more, not"):
                ask(step)
        assert saving.steps() == []


class Counted:
    """As an integer of numpy is one."""

    def __index__(self) -> int:
        return 3


def test_a_step_may_be_whatever_is_an_integer(root: str) -> None:
    with checkpoint("run", root=root) as saving:
        assert saving.save(Counted(), "state")  # type: ignore[arg-type]
    step, state = checkpoint("run", root=root).load()
    assert (step, type(step), state) == (3, int, "state")


def test_closed_checkpoint_refuses_to_save(root: str) -> None:
    saving = checkpoint("run", root=root)
    saving.close()
    saving.close()
    with pytest.raises(SpecError, match="closed"):
        saving.load()


# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"keep": 0}, "keep"),
        ({"keep": True}, "keep"),
        ({"every": 0}, "every"),
        ({"every": -1.0}, "every"),
        ({"every": True}, "every"),
        ({"every": "often"}, "every"),
        ({"timeout": 0}, "timeout"),
        ({"root": 5}, "checkpoint: root takes a folder"),
        ({"name": 5}, "the name is part of a path"),
    ],
)
def test_invalid_options_are_refused(root: str, options: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        checkpoint(**{"name": "run", "root": root, **options})


def test_missing_root_is_an_error_that_names_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OUTRIDER_CHECKPOINTS", raising=False)
    with pytest.raises(SpecError, match=r"Pool\(checkpoints="):
        checkpoint("run")


def test_the_root_comes_from_the_environment(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CHECKPOINTS", root)
    checkpoint("run").close()


def test_processes_of_another_launcher_are_told_to_use_a_pool(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(SpecError, match=r"pool\.broadcast"):
        checkpoint("run", root=root)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "script.py"


def run(script: Path, text: str) -> subprocess.CompletedProcess[str]:
    script.write_text(text)
    return subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)


def test_a_script_that_ends_has_saved(root: str, script: Path) -> None:
    done = run(script, f"from outrider import checkpoint\ncheckpoint('run', root={root!r}).save(7, list(range(10**6)))")
    assert (done.returncode, done.stderr) == (0, "")
    assert checkpoint("run", root=root).load().step == 7


def test_a_class_of_a_script_comes_along(root: str, script: Path) -> None:
    """Who loads it has another `__main__`."""
    run(
        script,
        "from dataclasses import dataclass\nfrom outrider import checkpoint\n@dataclass\nclass State:\n    epoch: int\n"
        f"checkpoint('run', root={root!r}).save(1, State(5))",
    )
    assert checkpoint("run", root=root).load().state.epoch == 5


def test_without_the_package_for_its_storage_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "outrider.engine.checkpoint.object_store", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(SpecError, match=r"outrider\[storage\].*Image\(pip="):
        checkpoint("run", root="s3://bucket")


def test_missing_bucket_is_an_error(s3_root: str) -> None:
    with pytest.raises(CheckpointError, match="s3://nowhere/run"):
        checkpoint("run", root="s3://nowhere").load()


def test_a_plain_state_brings_no_torch(root: str, script: Path) -> None:
    done = run(
        script,
        f"import sys\nfrom outrider import checkpoint\nsaving = checkpoint('run', root={root!r})\n"
        "saving.save(1, {'a': 1})\nsaving.load()\nprint(sorted({'torch', 'numpy', 'obstore'} & set(sys.modules)))",
    )
    assert done.stdout == "[]\n", done.stderr
