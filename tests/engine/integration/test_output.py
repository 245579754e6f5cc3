"""What tasks print arrives live, line by line, marked with rank and task; muted tasks are muted, and only they."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from outrider import Pool, TaskStopped, compute, events, instance_info, silent, stderr, stdout

pytestmark = pytest.mark.anyio


async def printed(pool: Pool, call: object, *, broadcast: bool = False) -> list[tuple[int, str, str]]:
    """Rank, stream and text of what a call prints, in order."""
    seen = pool.events()
    await (pool.broadcast(call) if broadcast else pool.run(call, on=0))  # type: ignore[arg-type]
    await pool.run(end_mark(), on=0)
    lines = []
    async for event in seen:
        if isinstance(event, events.TaskOutput):
            if event.text.startswith("END MARK"):
                break
            lines += [(event.rank, event.stream, line) for line in event.text.splitlines()]
    await seen.aclose()  # type: ignore[attr-defined]
    return lines


@compute
def end_mark() -> None:
    print("END MARK")


def speak() -> None:
    print(f"out of {instance_info().rank}")
    print("err", file=sys.stderr)


async def test_lines_are_marked_with_their_rank(pool: Pool) -> None:
    lines = await printed(pool, compute(speak)(), broadcast=True)
    assert sorted(lines) == sorted(
        [(rank, "stdout", f"out of {rank}") for rank in range(4)] + [(rank, "stderr", "err") for rank in range(4)]
    )


async def test_what_child_processes_and_descriptors_print_arrives_too(pool: Pool) -> None:
    @compute
    def indirectly() -> None:
        os.write(1, b"by descriptor\n")
        subprocess.run(["echo", "by a child"], check=True)

    assert await printed(pool, indirectly()) == [(0, "stdout", "by descriptor"), (0, "stdout", "by a child")]


async def test_only_the_head_speaks_if_told_so(pool: Pool) -> None:
    lines = await printed(pool, compute(stdout(only="head")(speak))(), broadcast=True)
    assert [line for line in lines if line[1] == "stdout"] == [(0, "stdout", "out of 0")]
    assert len([line for line in lines if line[1] == "stderr"]) == 4
    over = stderr(only=lambda info: info.rank == 2)(compute(speak))
    lines = await printed(pool, over(), broadcast=True)
    assert [line for line in lines if line[1] == "stderr"] == [(2, "stderr", "err")]


async def test_a_silent_task_is_silent_and_the_next_is_not(pool: Pool) -> None:
    @compute
    @silent
    def quiet() -> None:
        print("nobody hears this")
        os.write(1, b"nor this\n")

    assert await printed(pool, quiet()) == []
    assert sorted(await printed(pool, compute(speak)())) == [(0, "stderr", "err"), (0, "stdout", "out of 0")]


async def test_a_line_arrives_before_its_task_ends(pool: Pool) -> None:
    @compute
    def slow() -> None:
        import time

        print("I have begun", flush=True)
        time.sleep(600)

    seen = pool.events()
    job = pool.submit(slow())
    async for event in seen:
        if isinstance(event, events.TaskOutput):
            assert event.text.strip() == "I have begun"
            break
    assert not job.done()
    job.cancel()
    with pytest.raises(TaskStopped):
        await job
    await seen.aclose()  # type: ignore[attr-defined]
