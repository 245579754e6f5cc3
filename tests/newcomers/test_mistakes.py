"""Mistakes of a first day: each is told at once, in words that say what was probably meant."""

from __future__ import annotations

import asyncio
import bdb
import re
import sys
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest

import outrider
from outrider import (
    AWS,
    SSH,
    CapacityError,
    Host,
    Image,
    Local,
    Nodes,
    NotACall,
    Pool,
    PoolClosed,
    SerializationError,
    SpecError,
    SyncPool,
    TaskFailed,
    Volume,
    Worker,
    compute,
    gather,
    integrations,
    plugins,
)
from outrider.engine.pool_options import PoolOptions
from outrider.providers.shared.option_names import OF_IMAGE, OF_POOL
from outrider.testing import Chaos

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


class Refused(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


@compute
def refuse() -> None:
    raise Refused(7, detail="no")


@compute
def same(x: Any) -> Any:
    return x


@compute
def count(n: int) -> Iterator[int]:
    yield from range(n)


def undecorated(x: int) -> int:
    return x


def generator(n: int) -> Iterator[int]:
    yield n


# --- what a task raises -----------------------------------------------------------------------------------------------


def test_an_exception_with_arguments_of_its_own_arrives_as_itself(pool: SyncPool) -> None:
    with pytest.raises(Refused) as caught:
        refuse() >> pool
    assert (caught.value.code, caught.value.detail) == (7, "no")


# --- a forgotten operator, await, parenthesis or with -----------------------------------------------------------------

MEANT: dict[str, tuple[Callable[[Any], object], str]] = {
    "a function is not called": (lambda pool: same >> pool, r"same is a @compute function that was not called"),
    "it is broadcast": (lambda pool: same @ pool, r"write same\(\.\.\.\)"),
    "it is submitted": (lambda pool: same > pool, r"write same\(\.\.\.\)"),
    "functions are grouped": (lambda pool: same & same, r"write same\(\.\.\.\)"),
    "a plain function": (lambda pool: undecorated >> pool, "decorate it with @compute"),
    "a plain generator": (lambda pool: generator(3) >> pool, "decorate generator with @compute"),
    "a result": (lambda pool: 4 >> pool, "4 is not a pending call"),
    "the pool is left": (lambda pool: pool >> same(1), r"the pool stands on the right: same\(1\) >> pool"),
    "the pool is left of @": (lambda pool: pool @ same(1), r"same\(1\) >> pool"),
    "arguments beside the function": (lambda pool: pool.run(same, 3), r"write pool\.run\(same\(3\)\)"),
    "as of an executor": (lambda pool: pool.submit(same, 3), r"write pool\.submit\(same\(3\)\)"),
    "of a plain function": (lambda pool: pool.run(undecorated, 3), "with @compute on undecorated"),
    "of a broadcast": (lambda pool: pool.broadcast(same, 3), r"pool\.broadcast\(same\(3\)\)"),
    "several calls": (lambda pool: pool.run(same(1), same(2)), r"pool\.gather"),
    "a call is added to": (lambda pool: same(2) + 1, r"await \(same\(2\) >> pool\).*same\.local\(2\)"),
    "something is added to a call": (lambda pool: 1 + same(2), "pending call, not a result"),
    "a call is indexed": (lambda pool: same([1])[0], "pending call, not a result"),
    "a call is an argument": (
        lambda pool: same(same(1)) >> pool,
        r"args\[0\] of same: same\(1\) has not run.*await it",
    ),
    "a call is within one": (lambda pool: same({"x": [same(1)]}) >> pool, r"args\[0\]\['x'\]\[0\] of same.*await it"),
    "a call is an item": (lambda pool: list(pool.map(same, [same(1)])), r"same\(1\) has not run"),
    "a group is an argument": (lambda pool: same(gather(same(1), same(2))) >> pool, "has not run"),
    "a map is swapped": (lambda pool: pool.map([1, 2], same), r"the function first: pool\.map\(same, items\)"),
    "a map gets a call": (lambda pool: pool.map(same(1), [1]), r"not the call same\(1\)"),
    "a map gets one item": (lambda pool: pool.map(same, 5), "one by one, not 5"),
    "a map gets several iterables": (lambda pool: pool.map(same, [1], [2]), r"zip\(\.\.\.\).*pool\.as_completed"),
    "a map gets a generator": (lambda pool: pool.map(count, [1]), "yields values.*pool.stream"),
    "a map gets no function": (lambda pool: pool.map("same", [1]), "a function, not 'same'"),
}


@pytest.mark.parametrize("mistake", MEANT)
def test_a_slip_of_the_pen_is_told_with_what_was_meant(pool: SyncPool, mistake: str) -> None:
    make, said = MEANT[mistake]
    with pytest.raises(NotACall, match=said):
        make(pool)


def test_an_attribute_of_a_call_says_that_it_is_no_result() -> None:
    with pytest.raises(AttributeError, match=r"await \(same\(2\) >> pool\).*has no 'shape'"):
        same(2).shape  # noqa: B018


def test_a_call_that_is_printed_says_that_it_has_not_run() -> None:
    assert str(same(2)) == "<same(2) has not run: same(2) >> pool runs it on a node, same.local(2) here>"
    assert "same(same(2)) >> pool" in repr(same(same(2)))


def test_a_pool_without_its_with_is_told() -> None:
    with pytest.raises(PoolClosed, match=r"not open yet.*with Pool\(\.\.\.\) as pool"):
        _ = same(1) >> Pool()


def test_the_name_before_as_is_told_from_the_one_behind_it() -> None:
    mine = Pool(console="silent")
    with mine as pool:
        assert same(1) >> pool == 1
        with pytest.raises(PoolClosed, match=r"what `with \.\.\. as pool` gives"):
            _ = same(1) >> mine
        with pytest.raises(SpecError, match=r"what `with \.\.\. as pool` gives"):
            mine.submit(same(1))
    with pytest.raises(PoolClosed, match="has ended"):
        same(1) >> pool


async def test_a_map_of_a_synchronous_pool_that_is_awaited_is_told(pool: SyncPool) -> None:
    results: Any = pool.map(same, range(3))
    with pytest.raises(NotACall, match="leave out await and async"):
        await results
    assert list(results) == [0, 1, 2]


# --- a map that nobody reads ------------------------------------------------------------------------------------------


def test_a_synchronous_map_runs_when_it_is_called(pool: SyncPool) -> None:
    before = pool.snapshot().submitted
    results = pool.map(same, range(3))
    assert pool.snapshot().submitted > before
    assert "pool.map(same" in repr(results)
    assert next(results) == 0
    assert list(results) == [1, 2]


def test_results_of_a_map_that_are_dropped_unread_are_a_warning(pool: SyncPool) -> None:
    with pytest.warns(RuntimeWarning, match=r"Nobody has read the results of pool\.map\(same"):
        pool.map(same, range(1000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in pool.map(same, range(1000)):
            break
    assert same(1) >> pool == 1


def test_a_pool_ends_though_a_map_waits_for_its_items() -> None:
    async def never() -> AsyncIterator[int]:
        await asyncio.Event().wait()
        yield 1

    with Pool(console="silent") as pool:
        results = pool.map(same, never())
    with pytest.raises(PoolClosed, match="has ended"):
        list(results)


# --- another thread, another event loop -----------------------------------------------------------------------------

ELSEWHERE: dict[str, Callable[[Pool], object]] = {
    "run": lambda pool: asyncio.run(pool.run(same(1))),
    "submit": lambda pool: pool.submit(same(1)),
    "broadcast": lambda pool: asyncio.run(pool.broadcast(same(1))),
    "gather": lambda pool: asyncio.run(pool.gather(same(1), same(2))),
    "a group": lambda pool: asyncio.run((same(1) & same(2)) >> pool),
    "run, not awaited": lambda pool: same(1) >> pool,
    "broadcast, not awaited": lambda pool: same(1) @ pool,
    "a group, not awaited": lambda pool: (same(1) & same(2)) >> pool,
    "map": lambda pool: pool.map(same, [1]),
    "stream": lambda pool: asyncio.run(first_of(count(3) >> pool)),
    "resize": lambda pool: pool.resize(1),
    "events": lambda pool: pool.events(),
    "close": lambda pool: asyncio.run(pool.__aexit__(None, None, None)),
}


async def first_of(values: AsyncIterator[int]) -> int:
    return await anext(values)


async def test_a_pool_is_used_from_its_own_event_loop_alone() -> None:
    async with Pool(console="silent") as pool:
        for name, use in ELSEWHERE.items():
            with pytest.raises(SpecError, match=r"with Pool\(\.\.\.\) as pool.*run_coroutine_threadsafe"):
                await asyncio.to_thread(use, pool)
                pytest.fail(name)
        loop = asyncio.get_running_loop()

        def as_advised() -> Any:
            return asyncio.run_coroutine_threadsafe(pool.run(same(2)), loop).result()

        assert await asyncio.to_thread(as_advised) == 2
        assert await anyio.to_thread.run_sync(anyio.from_thread.run, pool.run, same(3)) == 3  # a web framework's thread
        with pytest.raises(NotACall, match=r"async for \.\.\. in pool\.map"):
            for _ in pool.map(same, [1]):  # type: ignore[attr-defined]
                pass
        with pytest.raises(NotACall, match=r"write pool\.run\(same\(3\)\)"):
            await pool.run(same, 3)  # type: ignore[arg-type]


@compute
def wait_for(path: Path) -> int:
    while not path.exists():
        time.sleep(0.01)
    return 1


def test_a_callback_in_the_pools_own_thread_does_not_wait_for_itself(pool: SyncPool, tmp_path: Path) -> None:
    told: list[BaseException | None] = []

    def callback(future: object) -> None:
        with pytest.raises(SpecError, match="from another thread") as caught:
            pool.run(same(2))
        told.append(caught.value)

    future = wait_for(tmp_path / "go") > pool
    future.add_done_callback(callback)
    (tmp_path / "go").touch()
    assert future.result() == 1
    same(3) >> pool  # the callbacks of earlier futures have run
    assert told


# --- jobs -------------------------------------------------------------------------------------------------------------


async def test_a_job_is_as_a_future_of_asyncio() -> None:
    async with Pool(console="silent") as pool:
        jobs = [pool.submit(same(n)) for n in range(3)]
        assert "of same: under way" in repr(jobs[0])
        done, _ = await asyncio.wait(jobs)  # type: ignore[type-var]  # typeshed takes no class but Future
        assert sorted(job.result() for job in done) == [0, 1, 2]
        assert "of same: returned" in repr(jobs[0])
        assert [job.exception() for job in jobs] == [None] * 3

        told: list[object] = []
        failing = pool.submit(refuse())
        failing.add_done_callback(told.append)
        failing.add_done_callback(print)
        assert failing.remove_done_callback(print) == 1
        await asyncio.wait([failing], return_when=asyncio.FIRST_EXCEPTION)  # type: ignore[type-var]
        assert isinstance(failing.exception(), Refused)
        assert told == [failing]
        assert not failing.cancelled()

        ended = pool.submit(sleep())
        with pytest.raises(asyncio.InvalidStateError):
            ended.exception()
        ended.cancel()
        await asyncio.wait([ended])  # type: ignore[type-var]
        assert ended.cancelled()


@compute
def sleep() -> None:
    time.sleep(600)


async def test_a_job_or_a_coroutine_as_an_argument_is_told() -> None:
    async with Pool(console="silent") as pool:
        job = pool.submit(same(1))
        with pytest.raises(NotACall, match=r"args\[0\] of same: it is a job of same.*await the job"):
            pool.submit(same(job))
        running = same(1) >> pool
        with pytest.raises(SerializationError, match="await it first"):
            await pool.run(same(running))
        running.close()
        assert await job == 1


# --- a task is not at home -------------------------------------------------------------------------------------------


@compute
def leave(status: Any) -> int:
    sys.exit(status)


@compute
def ask() -> str:
    return input("how many? ")


@compute
def stop_here() -> None:
    breakpoint()  # noqa: T100


@compute
def read() -> str:
    return Path("data.csv").read_text()


@compute
def imports() -> None:
    import no_such_module  # type: ignore[import-not-found]  # noqa: F401


def test_a_script_that_exits_well_has_returned(pool: SyncPool) -> None:
    assert leave(0) >> pool is None
    assert leave(None) >> pool is None
    assert list(pool.map(leave, [0, None, 0])) == [None] * 3
    with pytest.raises(TaskFailed, match="SystemExit: 3"):
        leave(3) >> pool


def test_a_task_that_asks_somebody_is_told_where_that_works(pool: SyncPool) -> None:
    with pytest.raises(EOFError) as caught:
        ask() >> pool
    assert ".local(...)" in caught.value.__notes__[0]
    with pytest.raises(bdb.BdbQuit) as stopped:
        stop_here() >> pool
    assert ".local(...)" in stopped.value.__notes__[0]


def test_a_relative_path_that_is_not_there_says_where_the_task_runs(pool: SyncPool) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        read() >> pool
    assert re.search(r"runs in /.* on its node.*includes", caught.value.__notes__[0])


def test_a_module_that_is_nowhere_says_how_nodes_get_it(pool: SyncPool) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        imports() >> pool
    assert re.search(r"no_such_module is not here either.*Image\(pip=.*includes=", caught.value.__notes__[0])


def test_files_of_a_pool_without_nodes_are_told_to_be_gone(tmp_path: Path) -> None:
    with Pool(nodes=Nodes(min=0, max=1, scale="load"), console="silent") as pool:
        with pytest.raises(CapacityError, match=r"No node of the pool is ready, .*fetch them before.*Pool\(keep="):
            pool.fetch("*.txt", to=tmp_path)
        with pytest.raises(CapacityError, match=r"nothing can be pushed.*Image\(includes="):
            pool.push(tmp_path)
        assert same(1) >> pool == 1
        assert pool.fetch("*.txt", to=tmp_path) == [], "there are none on the node that is"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("VastAI", "did you mean outrider.Vast?"),
        ("Azure", "Local, SSH, Containers, Slurm, AWS, GCP and other clouds"),
        ("Container", "outrider.Containers"),
        ("Session", "needs no session"),
        ("Options", r"@compute\(timeout"),
        ("remote", "outrider.compute"),
        ("function", "outrider.compute"),
        ("counter", "no shared collections"),
        ("dict", "no shared collections"),
        ("HealthChecker", "the guide on lost nodes"),
        ("PipIndex", r"Image\(pip_indexes"),
        ("redirect_output", "outrider.stdout"),
        ("main", "start with Python"),
        ("is_head", r"instance_info\(\)\.is_head"),
        ("Client", "outrider.Pool"),
        ("Pol", "did you mean outrider.Pool"),
        ("zebra", "has no attribute 'zebra'$"),
    ],
)
def test_a_name_of_another_library_says_what_there_is(name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=said):
        getattr(outrider, name)


def test_suggestions_are_for_misspellings_alone() -> None:
    with pytest.raises(AttributeError, match="there are"):
        _ = outrider.accelerators.A4000000
    with pytest.raises(AttributeError, match="did you mean H100"):
        _ = outrider.accelerators.H1000


OPTIONS: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "gpus of a pool": (Pool, {"gpus": 4}, "Pool has no option 'gpus': did you mean 'accelerator'"),
    "options of a pool": (Pool, {"options": 1}, "Pool has no option 'options': its entries are options of the pool"),
    "region of a pool": (Pool, {"region": "us-east-1"}, r"AWS\(region=...\)"),
    "health of a pool": (Pool, {"health_checker": print}, "the guide on lost nodes"),
    "cooldown of nodes": (Nodes, {"max": 2, "scale": "load", "cooldown": 60}, "did you mean 'idle'"),
    "executor of a worker": (Worker, {"executor": "thread"}, "Worker has no option 'executor': did you mean 'kind'"),
    "pips of an image": (Image, {"pips": ["numpy"]}, "Image has no option 'pips': did you mean 'pip'"),
    "packages of an image": (Image, {"packages": ["numpy"]}, "did you mean 'pip'"),
    "bucket of a volume": (
        Volume,
        {"bucket": "b", "mount": "/data"},
        "did you mean 'url'",
    ),
    "num_nodes of a pool": (Pool, {"num_nodes": 4}, "did you mean 'nodes'"),
    "pip of a pool": (Pool, {"pip": ["numpy"]}, r"Pool has no option 'pip': .* image=Image\(pip=\.\.\.\)"),
    "initial size": (Nodes, {"initial": 2}, "Nodes has no option 'initial': did you mean 'desired'"),
    "a misspelt size": (Nodes, {"desire": 2}, "Nodes has no option 'desire': did you mean 'desired'"),
    "cuda of torch": (plugins.torch, {"cuda": "cu128"}, r"plugins\.torch has no option 'cuda': .*pip_indexes"),
    "cuda of jax": (plugins.jax, {"cuda": "cu128"}, r"plugins\.jax has no option 'cuda': .*pip_indexes"),
    "a version of joblib": (plugins.joblib, {"version": "1.4"}, r"has no option 'version': .*Image\(pip="),
    "models of huggingface": (plugins.huggingface, {"models": ["gpt2"]}, "has no option 'models': .*home="),
    "a limit of MPS": (plugins.mps, {"pinned_memory_limit": "8G"}, "did you mean 'memory_limit'"),
    "a misspelling": (plugins.torch, {"backnd": "gloo"}, "did you mean 'backend'"),
    "misspelt chaos": (Chaos, {"mtfb": 15}, "Chaos has no option 'mtfb': did you mean 'mtbf'"),
    "nothing alike": (plugins.mig, {"profile": "1g.5gb", "zebra": 1}, "it has count, profile"),
    "of a decorator": (integrations.torch, {"cuda": "cu128"}, "has no option 'cuda'"),
}


VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "a provider by its name": ({"provider": "aws"}, r"write provider=AWS\(\.\.\.\)"),
    "a plugin by its name": ({"plugins": ["torch"]}, r"write plugins\.torch\(\)"),
    "a container's image": ({"image": "python:3.12"}, r"image takes an Image, .*, not 'python:3\.12'"),
    "a text as slots": ({"worker": "8"}, "how many tasks a node runs at a time, .*, not '8'"),
}


@pytest.mark.parametrize("mistake", VALUES)
def test_a_value_of_another_type_says_what_to_write(mistake: str) -> None:
    options, said = VALUES[mistake]
    with pytest.raises(SpecError, match=said):
        Pool(**options)


@pytest.mark.parametrize(("given", "said"), [(Local(), r"Pool\(provider=Local\(\.\.\.\)\)"), (4, r"Pool\(nodes=4\)")])
def test_an_option_without_its_name_says_the_name(given: Any, said: str) -> None:
    with pytest.raises(SpecError, match=f"write {said}"):
        Pool(given)


PROVIDERS: dict[str, tuple[Callable[..., object], dict[str, Any], str]] = {
    "gpus of AWS": (AWS, {"gpus": 4}, r"AWS has no option 'gpus': it is one of Pool: Pool\(accelerator="),
    "nodes of SSH": (SSH, {"hosts": ["a"], "nodes": 4}, r"it is one of Pool: Pool\(nodes="),
    "an instance type": (AWS, {"instance_type": "m7i.large"}, "did you mean 'instance_types'"),
    "an image": (AWS, {"image_id": "ami-1"}, "did you mean 'ami'"),
    "a user": (SSH, {"hosts": ["a"], "username": "ml"}, "SSH has no option 'username': did you mean 'user'"),
    "a host's user": (Host, {"name": "a", "username": "ml"}, "Host has no option 'username': did you mean 'user'"),
    "a key": (SSH, {"hosts": ["a"], "key_filename": "id"}, "did you mean 'key'"),
    "one host": (SSH, {"host": "a"}, "did you mean 'hosts'"),
    "nothing alike": (Local, {"zebra": 1}, "Local has no option 'zebra': it has as_remote"),
}


@pytest.mark.parametrize("mistake", PROVIDERS)
def test_an_option_that_a_provider_does_not_have_says_where_it_belongs(mistake: str) -> None:
    make, options, said = PROVIDERS[mistake]
    for kind in (TypeError, ValueError):  # as `SpecError`, which the options of a pool raise
        with pytest.raises(kind, match=said):
            make(**options)


FUNCTIONS = {
    "with_timeout": r"has no 'with_timeout': write same\.with_\(timeout=\.\.\.\)",
    "timeout": r"same\.with_\(timeout=",
    "set_retries": r"same\.with_\(retries=",
    "with_timout": r"same\.with_\(timeout=",
    "with_options": r"same\.with_\(timeout=",
    "remote": r"same\(\.\.\.\) >> pool",
    "submit": r"pool\.submit\(same\(\.\.\.\)\)",
    "map": r"pool\.map\(same, items\)",
    "fn": r"same\.function",
    "locl": "did you mean 'local'",
    "zebra": r"has no 'zebra'$",
    "_zebra": r"has no '_zebra'$",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_attribute_that_a_function_does_not_have_says_what_there_is(name: str) -> None:
    with pytest.raises(AttributeError, match=FUNCTIONS[name]):
        getattr(same, name)
    assert not hasattr(same, name)


def test_options_of_a_function_are_not_called() -> None:
    with pytest.raises(NotACall, match=r"f\.with_\(timeout=3\)"):
        same.options(timeout=3)  # type: ignore[operator]


def test_an_attribute_error_of_a_setup_is_its_own() -> None:
    def load() -> object:
        return object().weights  # type: ignore[attr-defined]

    @compute(setup=load)
    def predict(model: object) -> object:
        return model

    with pytest.raises(AttributeError, match="'object' object has no attribute 'weights'"):
        predict.local()


def test_options_of_the_pool_that_are_given_elsewhere_are_its_own() -> None:
    assert PoolOptions.__annotations__.keys() >= OF_POOL
    assert Image.__annotations__.keys() >= OF_IMAGE


def test_a_plugin_that_is_called_with_too_little_or_too_much_says_how_it_is_called() -> None:
    with pytest.raises(SpecError, match=r"missing .*'profile'. Write plugins\.mig\(profile, \*, count=None\)"):
        plugins.mig()  # type: ignore[call-arg]
    with pytest.raises(SpecError, match=r"too many positional arguments. Write plugins\.joblib\(\)"):
        plugins.joblib(4)  # type: ignore[call-arg]
    assert plugins.accelerate(mixed_precision="bf16").name == "accelerate", "which takes any option"


@pytest.mark.parametrize("mistake", OPTIONS)
def test_an_option_of_another_library_says_what_it_is_called_here(mistake: str) -> None:
    make, options, said = OPTIONS[mistake]
    with pytest.raises(SpecError, match=said):
        make(**options)
