"""An error is read from the user's own line on: without our frames, with the lines of source, and once."""

from __future__ import annotations

import asyncio
import linecache
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider import BroadcastFailed, CapacityError, Pool, SerializationError, SyncPool, compute, instance_info
from outrider.engine.api.tracebacks import FULL, with_source_lines


@compute
def fail(message: str) -> int:
    raise ValueError(message)


@compute
def fail_but_on_one() -> None:
    rank = instance_info().rank
    raise ValueError("alike" if rank != 1 else "other")


@pytest.fixture(scope="module")
def pool() -> Iterator[SyncPool]:
    with Pool(nodes=4, console="silent") as pool:
        yield pool


def frames_of_ours(error: BaseException) -> list[str]:
    summary = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in summary if frame.filename != __file__ and "_pytest" not in frame.filename]


VERBS: dict[str, Callable[[SyncPool], object]] = {
    "run": lambda pool: pool.run(fail("no")),
    "map": lambda pool: list(pool.map(fail, ["no"])),
    "submit": lambda pool: pool.submit(fail("no")).result(),
    "misuse": lambda pool: pool.run(3),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("verb", ["run", "map", "misuse"])
def test_an_error_comes_from_the_users_line(pool: SyncPool, verb: str) -> None:
    with pytest.raises(ValueError, match=r"no|3 is not") as caught:
        VERBS[verb](pool)
    assert frames_of_ours(caught.value) == []


def test_an_operator_has_one_frame_of_ours(pool: SyncPool) -> None:
    with pytest.raises(ValueError, match="no") as caught:
        fail("no") >> pool
    assert frames_of_ours(caught.value) == ["__rshift__"]


class Refuses:
    def __reduce__(self) -> str:
        raise TypeError("not this one")


@pytest.mark.parametrize("value", [(number for number in ()), Refuses()], ids=["generator", "refuses"])
def test_what_cannot_be_pickled_is_told_in_a_few_lines(pool: SyncPool, value: object) -> None:
    @compute
    def closes_over() -> object:
        return value

    for call in (fail(value), closes_over()):  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="cannot be pickled") as caught:
            pool.run(call)
        cause = caught.value.__cause__
        assert isinstance(cause, TypeError)
        frames = [each.name for each in traceback.extract_tb(cause.__traceback__)]
        assert frames == (["__reduce__"] if isinstance(value, Refuses) else []), "the user's frames alone"
        assert "cloudpickle" not in "".join(traceback.format_exception(caught.value))
    assert str(caught.value).startswith("closes_over (its variable 'value') cannot"), "the function is named once"


@compute
def wait() -> None:
    time.sleep(60)


@compute
def begin_and_wait(begun: Path) -> None:
    begun.touch()
    time.sleep(60)


@compute
def begin_and_wait_for_values(begun: Path) -> Iterator[int]:
    begun.touch()
    time.sleep(60)
    yield 1


@pytest.mark.parametrize("verb", ["run", "stream"])
def test_an_interrupt_comes_from_the_users_line(pool: SyncPool, verb: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    ways = {
        "run": lambda: pool.run(begin_and_wait(begun)),
        "stream": lambda: list(pool.stream(begin_and_wait_for_values(begun))),
    }

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.01)
        time.sleep(0.3)  # the call has been sent, and is waited for soon
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt, daemon=True)
    with pytest.raises(KeyboardInterrupt) as caught:
        interrupting.start()
        ways[verb]()
    interrupting.join()
    assert frames_of_ours(caught.value) == []


def test_a_cancelled_job_tells_where_it_was_awaited() -> None:
    async def main() -> asyncio.CancelledError:
        async with Pool(console="silent") as pool:
            waiting = asyncio.create_task(waits(pool))
            await asyncio.sleep(0.1)
            waiting.cancel()
            try:
                await waiting
            except asyncio.CancelledError as error:
                return error
        raise AssertionError("it was cancelled")

    async def waits(pool: Pool) -> None:
        await pool.submit(wait())

    assert frames_of_ours(asyncio.run(main())) == []


def test_a_pool_that_cannot_be_opened_is_told_in_a_few_lines() -> None:
    with pytest.raises(CapacityError) as caught, Pool(accelerator="H100:64", console="silent"):
        pass
    assert frames_of_ours(caught.value) == ["__enter__"]


def test_frames_of_the_users_own_items_are_kept(pool: SyncPool) -> None:
    def items() -> Iterator[str]:
        yield "no"
        raise LookupError("the items end here")

    with pytest.raises((LookupError, ValueError)) as caught:
        list(pool.map(len, items()))
    assert "items" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_all_frames_are_kept_on_request(pool: SyncPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FULL, "1")
    with pytest.raises(ValueError, match="no") as caught:
        pool.run(fail("no"))
    assert len(frames_of_ours(caught.value)) > 5


def test_equal_errors_of_ranks_are_told_once(pool: SyncPool) -> None:
    with pytest.raises(BroadcastFailed, match=r"on rank \d of 4: ValueError: (alike|other); 3 ranks") as caught:
        fail_but_on_one() @ pool
    by_rank = {outcome.rank: outcome.error for outcome in caught.value.outcomes}
    assert [str(by_rank[rank]) for rank in range(4)] == ["alike", "other", "alike", "alike"]
    assert caught.value.exceptions[0] is caught.value.first.error
    leads, *others = [error for error in caught.value.exceptions if str(error) == "alike"]
    assert leads.__notes__[-1].startswith("The same on ranks ")
    assert [len(error.__notes__) for error in others] == [1, 1]
    assert others[0].__notes__[0].endswith(f"Rank {leads.rank} has the traceback of the same.")  # type: ignore[attr-defined]
    told = "".join(traceback.format_exception(caught.value))
    assert told.count(", in fail_but_on_one") == 2


def test_a_line_that_the_node_has_not_is_taken_from_here() -> None:
    linecache.cache["<cell 7>"] = (4, None, ["first = 1\n", "    boom()\n"], "<cell 7>")
    text = 'Traceback (most recent call last):\n  File "<cell 7>", line 2, in f\nValueError: no'
    assert with_source_lines(text).splitlines()[2] == "    boom()"
    elsewhere = text.replace("<cell 7>", "/etc/passwd")
    assert with_source_lines(elsewhere) == elsewhere
    del linecache.cache["<cell 7>"]
    whole = 'Traceback:\n  File "x", line 2, in f\n    here()\n    ^^^^\nValueError: no'
    assert with_source_lines(whole) == whole
    assert with_source_lines("") == ""


def test_a_program_on_the_command_line_has_its_lines() -> None:
    program = """
from outrider import Pool, compute
@compute
def f():
    raise ValueError("no")
with Pool(console="silent") as pool:
    f() >> pool
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert '    raise ValueError("no")' in done.stderr
