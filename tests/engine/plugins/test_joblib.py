"""joblib and scikit-learn on a pool: results, errors, arrays that are sent once, several pools, and what is left."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_backend, parallel_config
from joblib.parallel import BACKENDS

from outrider import Local, Pool, PoolClosed, SpecError, SyncPool, TaskKilled, Worker, instance_info, plugins
from outrider.engine.plugins import joblib_backend
from outrider.engine.serialization.packer import Packer
from outrider.engine.serialization.payload import Shared

NODES = 2


@pytest.fixture(scope="module", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_STATE", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="module")
def pool(_state: None) -> Iterator[SyncPool]:
    pool = Pool(provider=Local(), nodes=NODES, worker=Worker(2), plugins=[plugins.joblib()], console="silent")
    with pool as opened:
        yield opened
    assert "outrider" not in BACKENDS


@pytest.fixture
def shared(pool: SyncPool, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is shared with the nodes from now on."""
    sizes: list[int] = []
    share = Packer.share

    def counted(self: Packer, value: Any) -> Any:
        sizes.append(value.nbytes if hasattr(value, "nbytes") else len(value))
        return share(self, value)

    monkeypatch.setattr(Packer, "share", counted)
    return sizes


def where(number: int) -> tuple[int, int, str]:
    return number, os.getpid(), instance_info().pool


def total(array: Any, number: int) -> tuple[float, bool]:
    return float(array.sum()) + number, array.flags.writeable


def fail_at(number: int, at: int) -> int:
    if number == at:
        raise ValueError(f"number {number}")
    return number


def fail_or_sleep(number: int, marks: str) -> None:
    Path(marks, f"{number}-{os.getpid()}").touch()
    if number == 0:
        while len(list(Path(marks).iterdir())) < 3:
            time.sleep(0.01)
        raise ValueError("the first one")
    time.sleep(600)


def test_tasks_run_on_the_pools_workers_and_come_back_in_order(pool: SyncPool) -> None:
    with parallel_config(backend="outrider"):
        assert joblib.effective_n_jobs(-1) == 4
        results = Parallel()(delayed(where)(number) for number in range(200))
    assert [number for number, _, _ in results] == list(range(200))
    assert os.getpid() not in {pid for _, pid, _ in results}
    assert {name for _, _, name in results} == {results[0][2]}


def test_the_older_context_manager_and_the_argument_of_parallel_work_too(pool: SyncPool) -> None:
    with parallel_backend("outrider", n_jobs=2):
        assert Parallel()(delayed(abs)(-number) for number in range(5)) == [0, 1, 2, 3, 4]
    assert Parallel(n_jobs=-1, backend="outrider")(delayed(abs)(-number) for number in range(3)) == [0, 1, 2]
    assert Parallel(n_jobs=-1, backend="outrider", pool=pool)(delayed(abs)(-1) for _ in range(2)) == [1, 1]


def test_results_can_be_taken_as_they_come(pool: SyncPool) -> None:
    with parallel_config(backend="outrider"):
        for how in ("generator", "generator_unordered"):
            taken = Parallel(return_as=how)(delayed(abs)(-number) for number in range(20))
            assert sorted(taken) == list(range(20))


def test_one_slot_is_still_a_pool() -> None:
    with (
        Pool(provider=Local(), plugins=[plugins.joblib()], console="silent") as small,
        parallel_config(backend="outrider", pool=small),
    ):
        (first, second) = Parallel()(delayed(where)(number) for number in range(2))
    assert first[1] == second[1] != os.getpid()


# --- large arrays -----------------------------------------------------------------------------------------------------


def test_an_array_that_many_tasks_take_is_sent_once(pool: SyncPool, shared: list[int]) -> None:
    array = np.arange(50_000.0)
    nested = {"deep": [array, np.ones(3)]}
    with parallel_config(backend="outrider"):
        results = Parallel(batch_size=1)(delayed(total)(array, number) for number in range(40))
        assert shared == [array.nbytes]
        assert Parallel(batch_size=1)(delayed(len)(nested) for _ in range(8)) == [1] * 8
    assert [value - number for number, (value, _) in enumerate(results)] == [array.sum()] * 40
    assert not any(writeable for _, writeable in results)
    assert shared == [array.nbytes] * 2  # a second call, before which it may have been changed


def test_a_change_between_two_calls_is_seen(pool: SyncPool) -> None:
    array = np.zeros(50_000)
    with parallel_config(backend="outrider"):
        assert Parallel()(delayed(total)(array, 0) for _ in range(4)) == [(0.0, False)] * 4
        array += 1
        assert Parallel()(delayed(total)(array, 0) for _ in range(4)) == [(50_000.0, False)] * 4


def test_a_call_goes_through_more_arrays_than_are_kept(pool: SyncPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblib_backend, "IDLE_BYTES", 2_000_000)
    arrays: list[weakref.ref[Any]] = []
    closed: list[None] = []
    kept: list[tuple[int, int]] = []
    share, close = Packer.share, Shared.close

    def opened(self: Packer, value: Any) -> Any:
        arrays.append(weakref.ref(value))
        kept.append((sum(each() is not None for each in arrays), len(arrays) - len(closed)))
        return share(self, value)

    def ended(self: Shared[Any]) -> None:
        closed.append(None)
        close(self)

    monkeypatch.setattr(Packer, "share", opened)
    monkeypatch.setattr(Shared, "close", ended)
    common = np.ones(500_000)
    with parallel_config(backend="outrider", n_jobs=2):
        results = Parallel(batch_size=1)(delayed(_both)(np.full(125_000, number), common) for number in range(50))
    assert results == [number + 1.0 for number in range(50)]
    assert len(arrays) == 51
    here, there = (max(each) for each in zip(*kept, strict=True))
    assert here < 12  # those of unfinished tasks, at most two others, and the common one
    assert there < 12


def _both(own: Any, common: Any) -> float:
    return float(own[-1] + common[-1])


class OpenPools:
    """A large object, and whether it is shared with the nodes."""

    def __init__(self, size_bytes: int) -> None:
        self.array = np.zeros(size_bytes, dtype=np.uint8)
        self.shared = False

    def close(self) -> None:
        self.shared = False


class Batches:
    """Batches that name large objects, which are shared as soon as that is done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, idle_bytes: int) -> None:
        monkeypatch.setattr(joblib_backend, "IDLE_BYTES", idle_bytes)
        self.large = joblib_backend.LargeObjects()
        self.sent: list[OpenPools] = []

    def submit(self, *objects: OpenPools) -> list[joblib_backend.Reference]:
        named: list[joblib_backend.Reference] = []
        for place, each in enumerate(objects):
            assert self.large.name(each.array, named) == place
            assert self.large.name(each.array, named) == place
            if named[place].shared is None:
                named[place].shared = each  # type: ignore[assignment]
                each.shared = True
                self.sent.append(each)
        self.large.batch_submitted(named)
        return named


def test_idle_objects_are_dropped_oldest_first_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Batches(monkeypatch, idle_bytes=200)
    objects = [OpenPools(100) for _ in range(5)]
    unfinished = batches.submit(objects[0])
    for each in objects[1:]:
        batches.large.batch_ended(batches.submit(each))
    assert [each.shared for each in objects] == [True, False, True, True, True]  # the last is the newest batch's
    batches.large.batch_ended(unfinished)
    assert [each.shared for each in objects] == [True, False, False, True, True]
    batches.submit(objects[1])
    assert batches.sent == [*objects, objects[1]]
    batches.large.close()
    assert not any(each.shared for each in objects)


def test_large_objects_of_every_batch_are_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where each of them has ended before the next one comes."""
    batches = Batches(monkeypatch, idle_bytes=50)
    common = OpenPools(1000)
    for _ in range(5):
        batches.large.batch_ended(batches.submit(OpenPools(100), common))
    assert batches.sent.count(common) == 1


def test_large_arrays_are_shared_and_small_or_object_arrays_are_pickled(pool: SyncPool, shared: list[int]) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": np.arange(40_000.0), "b": np.arange(40_000.0)})
    objects = np.array([{"not": "numbers"}] * 20_000, dtype=object)
    with parallel_config(backend="outrider"):
        sums = Parallel(batch_size=1)(delayed(_frame_sum)(frame) for _ in range(8))
        assert sum(shared) == 2 * 40_000 * 8
        assert Parallel(batch_size=1)(delayed(len)(objects) for _ in range(4)) == [20_000] * 4
        assert Parallel(batch_size=1)(delayed(len)(b"x" * 100_000) for _ in range(4)) == [100_000] * 4
    assert sums == [float(frame.sum().sum())] * 8


def _frame_sum(frame: Any) -> float:
    return float(frame.sum().sum())


# --- errors and endings -----------------------------------------------------------------------------------------------


def test_an_error_is_raised_as_itself_with_the_remote_traceback(pool: SyncPool) -> None:
    with parallel_config(backend="outrider"), pytest.raises(ValueError, match="number 3") as raised:
        Parallel()(delayed(fail_at)(number, 3) for number in range(10))
    assert "fail_at" in "".join(raised.value.__notes__)


def ends(pid: int) -> bool:
    """Whether the process ends, or has ended. Nobody waits for tasks that are cancelled: it may take a moment."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], 120)[0])
    finally:
        os.close(fd)


def test_after_an_error_the_other_tasks_are_ended_on_their_nodes(pool: SyncPool, tmp_path: Path) -> None:
    with parallel_config(backend="outrider"), pytest.raises(ValueError, match="the first one"):
        Parallel(batch_size=1)(delayed(fail_or_sleep)(number, str(tmp_path)) for number in range(3))
    with parallel_config(backend="outrider"):  # all four slots are free again
        assert Parallel(batch_size=1)(delayed(abs)(-number) for number in range(8)) == list(range(8))
    for name in tmp_path.iterdir():
        number, pid = name.name.split("-")
        assert number == "0" or ends(int(pid))


def test_a_timeout_is_joblibs_and_ends_the_tasks(pool: SyncPool) -> None:
    with parallel_config(backend="outrider"), pytest.raises(multiprocessing.TimeoutError):
        Parallel(timeout=0.3)(delayed(time.sleep)(600) for _ in range(2))
    with parallel_config(backend="outrider"):
        assert Parallel(timeout=60)(delayed(abs)(-1) for _ in range(4)) == [1] * 4


def test_a_task_that_ends_its_process_is_an_error_of_its_own(pool: SyncPool) -> None:
    with parallel_config(backend="outrider"), pytest.raises(TaskKilled, match="exit status 7"):
        Parallel()(delayed(os._exit)(7) for _ in range(2))


def test_unpicklable_argument_is_an_error_at_once(pool: SyncPool) -> None:
    lock = threading.Lock()
    with parallel_config(backend="outrider"), pytest.raises(TypeError, match="pickle"):
        Parallel()(delayed(id)(lock) for _ in range(2))


def nested(number: int) -> list[int]:
    return list(Parallel(n_jobs=2)(delayed(abs)(-number - each) for each in range(3)))


def test_parallel_within_a_task_uses_its_own_process(pool: SyncPool) -> None:
    with parallel_config(backend="outrider"):
        assert Parallel()(delayed(nested)(number) for number in range(4)) == [
            [number, number + 1, number + 2] for number in range(4)
        ]


def threads() -> list[int]:
    from threadpoolctl import threadpool_info

    return [each["num_threads"] for each in threadpool_info()]


def test_threads_of_blas_are_as_many_as_asked_for(pool: SyncPool) -> None:
    with parallel_config(backend="outrider", inner_max_num_threads=1):
        assert {count for each in Parallel()(delayed(_after_numpy)() for _ in range(4)) for count in each} <= {1}


def _after_numpy() -> list[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return threads()


# --- which pool -------------------------------------------------------------------------------------------------------


def test_with_two_pools_one_has_to_be_named(pool: SyncPool) -> None:
    with Pool(provider=Local(), plugins=[plugins.joblib()], console="silent") as other:
        with parallel_config(backend="outrider"), pytest.raises(SpecError, match="2 pools are open"):
            Parallel()(delayed(abs)(-1) for _ in range(2))
        for each in (pool, other, pool.handle("joblib")):
            with parallel_config(backend="outrider", pool=each):
                assert Parallel()(delayed(abs)(-1) for _ in range(2)) == [1, 1]
        names = []
        for each in (pool, other):
            with parallel_config(backend=each.handle("joblib").backend()):
                names.append(Parallel()(delayed(where)(0) for _ in range(2))[0][2])
        assert len(set(names)) == 2
    with parallel_config(backend="outrider"):  # the other one has gone
        assert Parallel()(delayed(abs)(-1) for _ in range(2)) == [1, 1]


def test_a_pool_without_the_plugin_is_refused(pool: SyncPool) -> None:
    with Pool(provider=Local(), console="silent") as plain, pytest.raises(SpecError, match="no joblib plugin"):
        parallel_config(backend="outrider", pool=plain)


def test_after_the_pool_its_backend_says_so() -> None:
    with Pool(provider=Local(), plugins=[plugins.joblib()], console="silent") as short:
        backend = short.handle("joblib").backend()
    with parallel_config(backend=backend), pytest.raises(PoolClosed, match="has ended"):
        Parallel()(delayed(abs)(-1) for _ in range(2))


def test_an_async_pool_is_used_from_a_thread_and_not_from_its_loop(pool: SyncPool) -> None:
    def squares(pool: Any) -> list[int]:
        with parallel_config(backend="outrider", pool=pool):
            return list(Parallel()(delayed(pow)(number, 2) for number in range(5)))

    async def main() -> None:
        async with Pool(provider=Local(), nodes=2, plugins=[plugins.joblib()], console="silent") as mine:
            assert await asyncio.to_thread(squares, mine) == [0, 1, 4, 9, 16]
            with pytest.raises(SpecError, match=r"asyncio\.to_thread"):
                squares(mine)

    asyncio.run(main())


# --- scikit-learn -----------------------------------------------------------------------------------------------------


def test_a_grid_search_finds_on_the_pool_what_it_finds_here(pool: SyncPool, shared: list[int]) -> None:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    x, y = load_digits(return_X_y=True)
    x, y = x[:600], y[:600]
    grid = {"C": [0.1, 1.0, 10.0], "gamma": [0.0001, 0.001]}
    with parallel_config(backend="outrider"):
        there = GridSearchCV(SVC(), grid, cv=3).fit(x, y)
    here = GridSearchCV(SVC(), grid, cv=3).fit(x, y)

    assert there.best_params_ == here.best_params_
    np.testing.assert_allclose(there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"])
    assert shared == [x.nbytes]  # of 18 fits


def test_with_sklearn_n_jobs_means_the_pool_while_it_is_open() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score

    default = joblib.parallel.DEFAULT_BACKEND
    x, y = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 2
    pool = Pool(provider=Local(), nodes=2, plugins=[plugins.sklearn()], console="silent")
    with pool as opened:
        assert joblib.parallel.DEFAULT_BACKEND == "outrider"
        assert Parallel(n_jobs=-1)(delayed(where)(0) for _ in range(2))[0][1] != os.getpid()
        assert len(cross_val_score(LogisticRegression(), x, y, cv=3, n_jobs=-1)) == 3
        with (
            pytest.raises(SpecError, match="default already"),
            Pool(provider=Local(), plugins=[plugins.sklearn()], console="silent"),
        ):
            pass
        with Pool(provider=Local(), plugins=[plugins.sklearn(default=False)], console="silent") as beside:
            assert beside.handle("sklearn").slots == 1
        assert opened.handle("sklearn").slots == 2
    assert default == joblib.parallel.DEFAULT_BACKEND
