"""Stacks of running tasks are taken from outside of their processes, whatever these do, and end none of them."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import context, inspection, signal_requests
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio
QUESTIONS = pytest.mark.parametrize("questions", [40, pytest.param(300, marks=pytest.mark.nightly)])


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.005)
    return path


async def asked(client: Any, number: int = 1, quiet_us: int = 0) -> dict[int, m.Stacks]:
    """The answers to one question, by attempt."""
    since = len(client.heard)
    client.send(m.ShowStacks(number, quiet_us))
    await client.until(
        lambda: any(isinstance(each, m.Stacks) and each.attempt is None for each in client.heard[since:])
    )
    found = [each for each in client.heard[since:] if isinstance(each, m.Stacks)]
    assert {each.number for each in found} == {number}
    return {each.attempt: each for each in found if each.attempt is not None}


async def text_with(client: Any, attempt: int, words: str) -> str:
    """The attempt's stacks, as soon as these words are in them. An attempt that ends before that fails the test."""
    async with asyncio.timeout(60):
        while True:
            answer = (await asked(client)).get(attempt)
            if answer is not None and words in answer.text:
                return answer.text
            over = client.of(attempt, m.Done, m.Failed, m.Ended)
            assert not over, f"{over}: so {words!r} is in no stacks of it any more"
            await client.turn()


async def test_a_task_that_has_ended_is_not_waited_for(make: Any) -> None:
    client = await make()
    attempt = client.run(os._exit, 3)
    await client.answer(attempt)
    with pytest.raises(AssertionError, match="so 'in f' is in no stacks of it any more"):
        await text_with(client, attempt, "in f")


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_each_task_is_seen_at_its_own_line_and_goes_on(make: Any, tmp_path: Path, kind: str) -> None:
    client = await make(slots=2, kind=kind)

    def other(path: str) -> str:
        while not Path(path).exists():
            time.sleep(0.005)
        return path

    paths = [str(tmp_path / name) for name in ("a", "b")]
    attempts = [client.run(wait_for, paths[0]), client.run(other, paths[1])]
    texts = [await text_with(client, *each) for each in zip(attempts, ("in wait_for", "in other"), strict=True)]
    assert re.search(r'^  File ".*test_stacks\.py", line \d+ in wait_for$', texts[0], re.MULTILINE)
    assert "other" not in texts[0]
    assert "wait_for" not in texts[1]
    assert "src/engine/node/" not in texts[0] + texts[1], "frames of ours are no news"
    for path in paths:
        Path(path).touch()
    assert [await client.call(os.path.basename, path) for path in paths] == ["a", "b"]
    assert [client.result(await client.answer(attempt)) for attempt in attempts] == paths
    assert await asked(client) == {}, "nothing runs"


async def test_a_task_whose_process_and_child_have_any_bytes_as_names_is_seen(make: Any, tmp_path: Path) -> None:
    """The kernel cuts names at 15 bytes, in the midst of a character."""
    client = await make()
    path = str(tmp_path / "end")

    def rename() -> int:
        ctypes.CDLL(None).prctl(15, b"\xd0\xd0", 0, 0, 0)  # PR_SET_NAME
        if (pid := os.fork()) == 0:
            with suppress(BaseException):
                wait_for(path)
            os._exit(7)
        return os.waitpid(pid, 0)[1]

    attempt = client.run(rename)
    assert "in rename" in await text_with(client, attempt, "in wait_for")
    Path(path).touch()
    assert client.result(await client.answer(attempt)) == 7 << 8


async def test_a_task_that_has_cut_its_file_has_no_stack_and_keeps_none_from_others() -> None:
    memory = inspection.StackMemory(1)
    os.ftruncate(memory.fd, 0)
    assert (await memory.text(1)).startswith("no stack: error: unpack requires")
    memory.close()


async def test_a_task_that_holds_the_interpreters_lock_in_c_code_is_seen(make: Any) -> None:
    client = await make()

    def hold() -> int:
        return ctypes.PyDLL(None).pause()  # holds the lock until a signal has been handled

    attempt = client.run(hold)
    assert "in hold" in await text_with(client, attempt, "in hold")
    async with asyncio.timeout(60):
        while not client.of(attempt, m.Done):
            await asked(client)
    assert client.result(await client.answer(attempt)) == -1


async def test_forks_are_seen_and_what_they_execute_is_named_and_left_alone(make: Any, tmp_path: Path) -> None:
    client = await make()
    path = str(tmp_path / "end")

    def fork() -> tuple[int, int]:
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                wait_for(path)
            os._exit(7)
        sleeper = subprocess.Popen(
            [sys.executable, "-c", f"import time\nwhile not __import__('os').path.exists({path!r}): time.sleep(0.005)"]
        )
        return os.waitpid(pid, 0)[1], sleeper.wait()

    attempt = client.run(fork)
    text = await text_with(client, attempt, "in wait_for")
    assert "in fork" in text.partition("process ")[0]
    assert "no stack: it is another program than the task's Python" in await text_with(
        client, attempt, "another program"
    )
    for _ in range(20):
        await asked(client)
    Path(path).touch()
    assert client.result(await client.answer(attempt)) == (7 << 8, 0)


async def test_a_process_that_closed_its_files_or_blocks_signals_gets_none(make: Any, tmp_path: Path) -> None:
    client = await make(slots=2)

    def close(path: str) -> bool:
        for each in os.listdir("/proc/self/fd"):  # noqa: PTH208
            with suppress(OSError):
                if "outrider-stacks" in os.readlink(f"/proc/self/fd/{each}"):  # noqa: PTH115
                    os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), int(each))
        wait_for(f"{path}.end")
        return not Path(path).read_bytes()

    def block(path: str) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        wait_for(path)

    one, other = client.run(close, str(tmp_path / "a")), client.run(block, str(tmp_path / "a.end"))
    await text_with(client, one, "no stack: it has closed its files")
    await text_with(client, other, "no stack: it blocks signals")
    Path(tmp_path / "a.end").touch()
    assert client.result(await client.answer(one)) is True, "nothing is written into a file of the task's"
    await client.answer(other)


async def test_a_stopped_process_is_waited_for_and_answers_later(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "WITHIN_S", 0.1)
    client = await make()
    attempt = client.run(wait_for, str(tmp_path / "end"))
    await text_with(client, attempt, "in wait_for")
    (of,) = client.server._workers.under_way()
    pid, _ = signal_requests.read_head(of.memory.fd)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "it has not answered within" in (await asked(client))[attempt].text
    finally:
        os.kill(pid, signal.SIGCONT)
    await text_with(client, attempt, "in wait_for")
    (tmp_path / "end").touch()
    await client.answer(attempt)


async def test_an_answer_that_came_while_the_executor_stood_still_is_read(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, looks, really_seen = await make(), list[Path](), inspection._seen
    attempt = client.run(wait_for, str(tmp_path / "end"))
    await text_with(client, attempt, "in wait_for")
    (of,) = client.server._workers.under_way()

    def seen(status: Path) -> inspection._Seen:
        looks.append(status)
        while len(looks) == 2 and (os.fstat(of.memory.fd).st_size <= of.memory._begin or really_seen(status).at_signal):
            time.sleep(0.001)
        return really_seen(status)

    monkeypatch.setattr(inspection, "_seen", seen)
    monkeypatch.setattr(inspection, "WITHIN_S", 0.0)
    assert "in wait_for" in (await asked(client))[attempt].text


@QUESTIONS
async def test_stacks_are_taken_again_and_again_of_a_task_that_computes(
    make: Any, tmp_path: Path, questions: int
) -> None:
    client = await make(slots=2)

    def compute(path: str) -> list[int]:
        found: list[int] = []
        while not Path(path).exists():
            found = sorted(range(500), key=lambda each: -each)
            subprocess.run(["true"], check=True)
        return found[:2]

    attempts = [client.run(compute, str(tmp_path / "end"), flags=flag) for flag in (0, int(m.RunFlag.FRESH))]
    for attempt in attempts:
        await text_with(client, attempt, "in compute")
    for number in range(1, questions + 1):
        assert {*await asked(client, number)} <= {*attempts}
    (tmp_path / "end").touch()
    assert [client.result(await client.answer(attempt)) for attempt in attempts] == [[499, 498]] * 2


def descend(depth: int) -> int:
    return 1 + descend(depth - 1) if depth else 0


def compute(path: str) -> int:
    """Frames and code objects come and go."""
    depth = 0
    while not Path(path).exists():
        depth = (depth + 37) % 300
        exec(f"descend({depth})", {"descend": descend})
    return depth


@QUESTIONS
async def test_stacks_are_taken_of_a_process_that_computes_in_threads(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, questions: int
) -> None:
    """Frames of threads that run meanwhile may be gone: a worker died of that within 200 questions, each time."""
    monkeypatch.setattr(inspection, "WITHIN_S", 60.0)  # or some threads are not asked in time, on a busy machine
    client = await make()
    path = str(tmp_path / "end")

    def descend_often() -> None:
        depth = 0
        while not Path(path).exists():
            depth = (depth + 37) % 300
            descend(depth)

    def compute_in_threads() -> int:
        threads = [threading.Thread(target=descend_often) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return 1

    attempt = client.run(compute_in_threads)
    await text_with(client, attempt, "in join")
    for number in range(questions):
        answers = await asked(client, number)
        assert attempt in answers, f"question {number}: {client.of(attempt, m.Ended)}"
        text = answers[attempt].text
        assert "in compute_in_threads" in text.partition("\nthread ")[0], text
        assert text.count("\nthread ") >= 4, text  # on a busy machine one may seem to run no Python
    (tmp_path / "end").touch()
    assert client.result(await client.answer(attempt)) == 1


async def test_a_thread_that_gets_no_processor_is_not_taken_for_one_without_python(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has taken the signal for it, and so it is not pending any more; its handler has not begun."""
    client = await make()
    path = str(tmp_path / "end")

    def count() -> None:
        while not Path(path).exists():
            pass

    def count_in_threads() -> int:
        threads = [threading.Thread(target=count) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return os.getpid()

    attempt = client.run(count_in_threads)
    await text_with(client, attempt, "in join")
    really_seen, waiting, asked_already = inspection._seen, set[Path](), set[Path]()
    loop = asyncio.get_running_loop()

    def goes_on(pid: int) -> None:
        os.kill(pid, signal.SIGCONT)
        waiting.clear()

    def seen(status: Path) -> inspection._Seen:
        thread, pid = int(status.parent.name), int(status.parent.parent.parent.name)
        if thread == pid:
            return really_seen(status)
        if not waiting and status not in asked_already:  # it is stopped from before it is signalled
            asked_already.add(status)
            waiting.add(status)
            os.kill(pid, signal.SIGSTOP)
            loop.call_later(0.2, goes_on, pid)
        return inspection._Seen(True, False, False) if waiting else really_seen(status)

    monkeypatch.setattr(inspection, "_seen", seen)
    monkeypatch.setattr(inspection, "WITHIN_S", 60.0)
    text = (await asked(client))[attempt].text
    monkeypatch.undo()
    assert len(asked_already) == 3
    assert len(re.findall(r"in count$", text, re.MULTILINE)) == 3, text
    (tmp_path / "end").touch()
    assert client.result(await client.answer(attempt))


async def test_all_threads_are_seen_while_the_main_thread_hangs_in_c_code_with_the_lock(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "WITHIN_S", 60.0)
    client = await make()
    os.mkfifo(tmp_path / "end")

    def hang(path: str) -> int:
        began = threading.Event()

        def wait_in_a_thread() -> None:
            began.set()
            threading.Event().wait()

        threading.Thread(target=wait_in_a_thread, daemon=True).start()
        began.wait()
        return ctypes.PyDLL(None).read(os.open(path, os.O_RDWR), ctypes.create_string_buffer(1), 1)  # keeps the lock

    attempt = client.run(hang, str(tmp_path / "end"))
    await text_with(client, attempt, "in wait_in_a_thread")
    began = time.monotonic()
    first, _, other = (await asked(client))[attempt].text.partition("\nthread ")
    took = time.monotonic() - began
    assert re.search(r"in hang$", first, re.MULTILINE)
    assert "in wait_in_a_thread" in other
    assert took < inspection.WITHIN_S, "no thread is waited for in vain"
    os.write(os.open(tmp_path / "end", os.O_WRONLY), b"x")
    assert client.result(await client.answer(attempt)) == 1


@QUESTIONS
async def test_stacks_are_taken_of_threads_whose_frames_come_and_go(make: Any, tmp_path: Path, questions: int) -> None:
    """Frames that are read without the interpreter's lock may be gone: a worker died of that within 600 questions."""
    client = await make(slots=2, kind="thread")

    def waits_for_the_lock() -> bool:
        return callable(signal.getsignal(signal_requests.STACK_SIGNAL))

    assert await client.call(waits_for_the_lock)
    attempts = [client.run(compute, str(tmp_path / "end")) for _ in range(2)]
    for attempt in attempts:
        await text_with(client, attempt, "in compute")
    for number in range(1, questions + 1):
        assert {*await asked(client, number)} == {*attempts}
    (tmp_path / "end").touch()
    for attempt in attempts:
        assert isinstance(await client.answer(attempt), m.Done)


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_a_task_that_has_taken_a_step_is_not_disturbed(make: Any, tmp_path: Path, kind: str) -> None:
    client = await make(slots=2, kind=kind)

    def step(path: str) -> None:
        while not Path(path).exists():
            context.stepped("step")
            time.sleep(0.005)

    stepping, other = (client.run(each, str(tmp_path / "end")) for each in (step, wait_for))
    await text_with(client, stepping, "in step")
    await text_with(client, other, "in wait_for")
    while True:
        answers = await asked(client)
        if answers[stepping].quiet_us < 200_000 < answers[other].quiet_us:
            break
    answers = await asked(client, quiet_us=3_600_000_000)
    assert answers[stepping].text == ""
    assert 0 <= answers[stepping].quiet_us < 60_000_000
    assert answers[other].text == "", "it has begun since then"
    assert answers[other].quiet_us < 60_000_000
    (tmp_path / "end").touch()
    for attempt in (stepping, other):
        await client.answer(attempt)


async def test_a_process_that_ends_meanwhile_costs_the_others_nothing(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "WITHIN_S", 60.0)
    client = await make(slots=2)
    attempt = client.run(wait_for, str(tmp_path / "end"))
    await text_with(client, attempt, "in wait_for")
    for number in range(10):
        dying = client.run(os._exit, number)
        answers = await asked(client, number)
        assert "in wait_for" in answers[attempt].text
        await client.answer(dying)
    (tmp_path / "end").touch()
    await client.answer(attempt)


def test_a_dead_process_is_not_signalled() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(ProcessLookupError), inspection.ProcessHandle(pid):
        pass


async def test_a_process_of_another_program_is_never_signalled(tmp_path: Path) -> None:
    """The handler is asked for, and so is the file: a program that handles every signal is no fork of a worker."""
    caught = "import signal,time\nfor n in range(34,65): signal.signal(n, lambda *_: print('hit', flush=True))\n"
    with subprocess.Popen(
        [sys.executable, "-c", f"{caught}print('up', flush=True)\ntime.sleep(60)"], stdout=-1
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        memory = inspection.StackMemory(1)
        dump, refused = await memory._dump(other.pid, memory.fd)
        assert (dump, refused) == ([], "it has closed its files")
        memory.close()
        other.kill()
        assert other.stdout.read() == b""


async def test_a_process_that_stops_handling_the_signal_is_not_signalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may do so after it was seen to handle it, and before a thread of it gets the signal: as one that ends does."""
    monkeypatch.setattr(inspection, "WITHIN_S", 0.05)
    monkeypatch.setattr(inspection, "AGAIN_S", 0.0)
    monkeypatch.setattr(inspection.StackMemory, "_refusal", lambda *_, **__: "")
    program = "import threading\nthreading.Thread(target=input).start()\nprint('up', flush=True)"
    other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    memory = inspection.StackMemory(2)
    again: list[int] = []
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"up\n"
        dump, refused = await memory._dump(other.pid, memory.fd)
        assert (dump, refused) == ([], "its process does not handle the signal any more, as one that is about to end")
        with inspection.ProcessHandle(other.pid) as handle:
            for thread in inspection._threads(other.pid):
                if thread != other.pid:
                    assert await memory._of_thread(handle, thread, time.monotonic() + 60) == ""
        assert not await memory._has_answered(other.pid, frozenset(), lambda: again.append(1))
        assert again == []
    finally:
        memory.close()
        other.communicate(b"\n")
    assert other.returncode == 0


@pytest.mark.parametrize(("said", "ran_s"), [("12000000 5 7\n", 0.012), ("0 0 0\n", -1.0), ("", -1.0), (None, -1.0)])
def test_a_kernel_that_counts_no_time_on_a_processor_does_not_say_it(
    said: str | None, ran_s: float, tmp_path: Path
) -> None:
    if said is not None:
        (tmp_path / "schedstat").write_text(said)
    assert inspection._ran_s(tmp_path / "status") == ran_s


def test_a_thread_of_the_worker_notes_its_attempt() -> None:
    fd = signal_requests.make_stack_file(2)
    pid = os.fork()
    if pid == 0:  # the handler stays registered in the process
        notes = signal_requests.StackFile(fd, locked=False)
        notes.began(1, 9)
        notes.stepped(1)
        os._exit(threading.get_ident() != signal_requests.read_notes(fd, 2)[1].thread)
    assert os.waitpid(pid, 0)[1] == 0
    assert signal_requests.read_head(fd) == (pid, fd)
    first, second = signal_requests.read_notes(fd, 2)
    assert (first.attempt, second.attempt) == (0, 9)
    assert 0 < second.stepped_ns <= time.monotonic_ns()
    os.close(fd)
