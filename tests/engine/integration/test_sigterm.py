"""SIGTERM and SIGHUP end pools before they end the process, where they would have ended that at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60.0
BEGINNING = """
import asyncio, os, signal, sys, threading, time
from contextlib import asynccontextmanager, contextmanager
from outrider import AWS, Local, Pool, compute
from outrider.engine.client import signals

def say(*words):
    os.write(1, " ".join(map(str, words)).encode() + b"\\n")

@contextmanager
def told(*name):
    try:
        yield
    except BaseException as error:
        say(type(error).__name__, *error.args, *name)
        raise

class Here(Local):
    @asynccontextmanager
    async def open(self, pool, entry_points):
        try:
            async with super().open(pool, entry_points) as fleet:
                await self.opened()
                yield fleet
                await self.closing()
        finally:
            say("closed")

    async def opened(self): ...

    async def closing(self): ...

async def heard():
    await asyncio.to_thread(sys.stdin.readline)

@compute
def sleep():
    time.sleep(600)

def pool(provider=Here()):
    return Pool(provider=provider, console="silent")
"""


class Client:
    """A program that goes on from `BEGINNING`."""

    def __init__(self, program: str, state: Path) -> None:
        self._state, self._mark = state, f"OUTRIDER_STATE={state}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGINNING + textwrap.dedent(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OUTRIDER_STATE": str(state)},
            bufsize=0,  # what `until` has not read is for `ended`
        )

    def until(self, *words: str) -> None:
        """It has said all of them."""
        assert self.process.stdout is not None
        said: list[str] = []
        while not {*words} <= {*said}:
            line = self.process.stdout.readline().decode()
            assert line, said
            said.append(line.rstrip())

    def terminate(self, by: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(by)

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")

    def ended(self) -> tuple[int, list[str]]:
        """Its status, and what else it has said."""
        said, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, said.decode().splitlines()

    def processes(self) -> list[str]:
        """Command lines of itself and of all that it has started."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self._mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Processes and files of a program that has ended, once what is about to end has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.01)
        return [*self.processes(), *(str(path) for path in self._state.glob("local/*"))]


Begin = Callable[[str], Client]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Begin]:
    """Begins a program, and returns when it has said "up"."""
    begun: list[Client] = []

    def begin(program: str) -> Client:
        begun.append(Client(program, tmp_path))
        begun[-1].until("up")
        return begun[-1]

    yield begin
    for each in begun:
        with each.process:
            each.process.kill()


# --- where SIGTERM would have ended the process -----------------------------------------------------------------------

BLOCK = """
    async def main():
        async with pool():
            with told():
                say("up")
                await asyncio.sleep(600)
    asyncio.run(main())
    """
SYNC_BLOCK = """
    with pool():
        with told():
            say("up")
            time.sleep(600)
    """
VERB = """
    with pool() as it:
        with told():
            it.submit(sleep())
            say("up")
            it.run(sleep())
    """
TASKS = """
    async def one(opened):
        async with pool():
            with told():
                opened.set()
                await asyncio.sleep(600)
    async def main():
        both = [asyncio.Event(), asyncio.Event()]
        async with asyncio.TaskGroup() as tasks:
            for each in both:
                tasks.create_task(one(each))
            for each in both:
                await each.wait()
            say("up")
    asyncio.run(main())
    """
FIRST_ENDS_THE_LOOP = """
    async def one(opened):
        async with pool():
            with told():
                opened.set()
                await asyncio.sleep(600)
    async def other(opened):
        async with pool():
            with told():
                opened.set()
                try:
                    await asyncio.sleep(600)
                finally:
                    await asyncio.sleep(600)
    async def main():
        opened = [asyncio.Event(), asyncio.Event()]
        both = asyncio.gather(one(opened[0]), other(opened[1]))
        for each in opened:
            await each.wait()
        say("up")
        await both
    asyncio.run(main())
    """
NESTED = """
    async def main():
        async with pool():
            with told("outer"):
                async with pool():
                    with told("inner"):
                        say("up")
                        await asyncio.sleep(600)
    asyncio.run(main())
    """
SYNC_NESTED = """
    with pool():
        with told("outer"):
            with pool():
                with told("inner"):
                    say("up")
                    time.sleep(600)
    """
MIXED = """
    async def main():
        async with pool():
            with told("inner"):
                say("up")
                await asyncio.sleep(600)
    with pool():
        with told("outer"):
            asyncio.run(main())
    """
OPENING = """
    class Slow(Here):
        async def opened(self):
            say("up")
            await asyncio.sleep(600)
    async def main():
        async with pool(Slow()):
            say("it is open")
    asyncio.run(main())
    """
SYNC_OPENING = """
    class Slow(Here):
        async def opened(self):
            say("up")
            await asyncio.sleep(600)
    with pool(Slow()):
        say("it is open")
    """
CANCELLED, EXIT = "CancelledError", "SystemExit 143"


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param(BLOCK, [CANCELLED, "closed"], id="block"),
        pytest.param(SYNC_BLOCK, [EXIT, "closed"], id="sync block"),
        pytest.param(VERB, [EXIT, "closed"], id="sync verb"),
        pytest.param(TASKS, [CANCELLED, CANCELLED, "closed", "closed"], id="two tasks"),
        pytest.param(FIRST_ENDS_THE_LOOP, [CANCELLED, "closed"] * 2, id="first ends the loop"),
        pytest.param(NESTED, [f"{CANCELLED} inner", "closed", f"{CANCELLED} outer", "closed"], id="nested"),
        pytest.param(SYNC_NESTED, [f"{EXIT} inner", "closed", f"{EXIT} outer", "closed"], id="sync nested"),
        pytest.param(MIXED, [f"{CANCELLED} inner", "closed", f"{EXIT} outer", "closed"], id="async in sync"),
        pytest.param(OPENING, ["closed"], id="opening"),
        pytest.param(SYNC_OPENING, ["closed"], id="sync opening"),
    ],
)
def test_the_pools_end_first(program: str, says: list[str], client: Begin) -> None:
    it = client(program)
    it.terminate()
    assert it.ended() == (-signal.SIGTERM, says)
    assert it.left() == []


@pytest.mark.parametrize(
    ("program", "says"), [(BLOCK, [CANCELLED, "closed"]), (SYNC_BLOCK, ["SystemExit 129", "closed"])]
)
def test_a_closed_terminal_ends_the_pools_first(program: str, says: list[str], client: Begin) -> None:
    it = client(program)
    it.terminate(signal.SIGHUP)
    assert it.ended() == (-signal.SIGHUP, says)
    assert it.left() == []


def test_of_several_signals_the_first_is_what_the_process_dies_of(client: Begin) -> None:
    it = client(CLOSING + BLOCK.replace("pool()", "pool(Slow())"))
    it.terminate(signal.SIGHUP)
    it.until("closing")
    it.terminate()
    it.go_on()
    assert it.ended() == (-signal.SIGHUP, ["closed"])
    assert it.left() == []


CLOSING = """
    class Slow(Here):
        async def closing(self):
            say("closing")
            await heard()
    """


@pytest.mark.parametrize(
    "block",
    [
        """
    async def main():
        async with pool(Slow()):
            say("up")
            await heard()
    asyncio.run(main())
    """,
        """
    with pool(Slow()):
        say("up")
        sys.stdin.readline()
    """,
    ],
    ids=["async", "sync"],
)
def test_what_comes_while_a_pool_is_closed_waits_for_its_end(block: str, client: Begin) -> None:
    it = client(CLOSING + block)
    assert len(it.processes()) > 1
    it.go_on()
    it.until("closing")
    for _ in range(3):
        it.terminate()
    it.go_on()
    assert it.ended() == (-signal.SIGTERM, ["closed"])
    assert it.left() == []


SAYS_WHAT_IT_HEARD = """
    class Slow(Here):
        async def closing(self):
            told = asyncio.Event()
            asyncio.get_running_loop().add_reader(0, told.set)  # no thread, which would be waited for
            say("closing")
            await told.wait()
            asyncio.get_running_loop().remove_reader(0)
            for _ in range(20):
                await asyncio.sleep(0)
            say("heard")
    """
CLOSED_BY_A_TASK = """
    async def main():
        async with pool(Slow()) as it:
            closing = asyncio.create_task(it.close())
            say("up")
            await asyncio.sleep(0)
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        say("interrupted")
    """
CLOSED_BY_A_THREAD = """
    from outrider.engine import sync
    wait_for = sync.wait_for
    def waiting(event):
        say("waiting")
        wait_for(event)
    sync.wait_for = waiting
    try:
        with pool(Slow()) as it:
            say("up")
            threading.Thread(target=it.close, daemon=True).start()
            while not it._closing:
                pass
    except KeyboardInterrupt:
        say("interrupted")
    """


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_so_does_what_comes_while_another_task_closes_it(sent: signal.Signals, client: Begin) -> None:
    it = client(SAYS_WHAT_IT_HEARD + CLOSED_BY_A_TASK)
    it.until("closing")
    it.terminate(sent)
    it.go_on()
    says = ["heard", "closed"]
    assert it.ended() == ((-sent, says) if sent is signal.SIGTERM else (0, [*says, "interrupted"]))
    assert it.left() == []


def test_a_program_whose_main_thread_is_interrupted_waits_for_the_thread_that_closes_its_pool(client: Begin) -> None:
    it = client(SAYS_WHAT_IT_HEARD + CLOSED_BY_A_THREAD)
    it.until("closing", "waiting")
    it.terminate(signal.SIGINT)
    it.until("interrupted", "waiting")
    it.go_on()
    assert it.ended() == (0, ["heard", "closed"])
    assert it.left() == []


def test_none_is_left_before_all_are_closed(client: Begin) -> None:
    """Where the first ends the main task, asyncio would cancel what the others are closed by."""
    it = client(
        CLOSING
        + """
    close = Pool._close_core
    async def closing(self, core, error):
        await close(self, core, error)
        say("left")
    Pool._close_core = closing
    async def one(provider, opened):
        async with pool(provider):
            opened.set()
            await asyncio.sleep(600)
    async def main():
        opened = [asyncio.Event(), asyncio.Event()]
        both = asyncio.gather(one(Here(), opened[0]), one(Slow(), opened[1]))
        for each in opened:
            await each.wait()
        say("up")
        with told("main"):
            await both
    asyncio.run(main())
    """
    )
    it.terminate()
    it.until("closing", "left")
    it.go_on()
    assert it.ended() == (-signal.SIGTERM, ["closed", "left"])
    assert it.left() == []


@pytest.mark.parametrize("block", [BLOCK, SYNC_BLOCK], ids=["async", "sync"])
def test_the_second_does_nothing(block: str, client: Begin) -> None:
    it = client(CLOSING + block.replace("pool()", "pool(Slow())"))
    it.terminate()
    it.until("closing")
    it.terminate()
    it.go_on()
    assert it.ended() == (-signal.SIGTERM, ["closed"])
    assert it.left() == []


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("opens", ["async with pool()", "with pool()"], ids=["async", "sync"])
def test_a_machine_that_does_not_answer_yet_is_terminated(
    opens: str, sent: signal.Signals, client: Begin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("aiobotocore")
    from outrider.testing import EC2, Behaviour

    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "OUTRIDER_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    with EC2(Behaviour(boot_s=0.01, stop_s=0.01, types=("m7i.large",))) as cloud:
        opened = f"Pool(provider=AWS({cloud.region!r}, endpoint_url={cloud.endpoint_url!r}, address='private'), nodes=2"
        it = client(f"""
            async def main():
                say("up")
                {opens.replace("pool()", opened + ", console='silent')")}:
                    say("it is open")
            asyncio.run(main())
            """)
        deadline = time.monotonic() + PATIENCE_S
        while len(cloud.instances("running")) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(cloud.instances("running")) == 2
        it.terminate(sent)
        assert it.ended() == (-sent, [])
        assert cloud.left() == []


def test_a_pool_that_opens_afterwards_is_ended_too(client: Begin) -> None:
    it = client("""
        async def main():
            first = signals.TaskHold()
            try:
                say("up")
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                second = signals.TaskHold()
            with told():
                try:
                    await asyncio.sleep(600)
                finally:
                    second.release()
                    say("the first is left")
                    first.release()
        asyncio.run(main())
        """)
    it.terminate()
    assert it.ended() == (-signal.SIGTERM, ["the first is left"])


# --- where that leaves nobody who would close a pool ------------------------------------------------------------------

DONE = """
    async def opens():
        signals.TaskHold()
    async def main():
        await asyncio.create_task(opens())
        say("up")
        await asyncio.sleep(600)
    asyncio.run(main())
    """
LOOP_CLOSED = """
    async def opens():
        signals.TaskHold()
    asyncio.run(opens())
    say("up")
    time.sleep(600)
    """
ENDS_WITHOUT = """
    async def opens():
        signals.TaskHold()
        with told():
            await asyncio.sleep(600)
    async def main():
        opening = asyncio.create_task(opens())
        await asyncio.sleep(0)
        say("up")
        await asyncio.wait([opening])
        await asyncio.sleep(600)
    asyncio.run(main())
    """
OTHER_THREAD = """
    hold = signals.ThreadHold()
    hold.interrupt()
    closes = threading.Thread(target=hold.release)
    closes.start()
    closes.join()
    say("up")
    time.sleep(600)
    """


@pytest.mark.parametrize(
    ("program", "says"),
    [
        pytest.param(DONE, [], id="its task has ended"),
        pytest.param(LOOP_CLOSED, [], id="its loop is closed"),
        pytest.param(ENDS_WITHOUT, [CANCELLED], id="its task ends without it"),
        pytest.param(OTHER_THREAD, [], id="it was closed in another thread"),
    ],
)
def test_the_process_ends_nevertheless(program: str, says: list[str], client: Begin) -> None:
    it = client(program)
    it.terminate()
    assert it.ended() == (-signal.SIGTERM, says)


def test_a_forked_child_ends_as_ever(client: Begin) -> None:
    it = client("""
        import multiprocessing

        def runs():
            theirs.send("runs")
            time.sleep(600)

        def opens():
            hold = signals.ThreadHold()
            try:
                hold.interrupt()
                theirs.send("opened")
                time.sleep(600)
            finally:
                say("ended")
                hold.release()

        ours, theirs = multiprocessing.Pipe()
        forked = multiprocessing.get_context("fork").Process
        hold = signals.ThreadHold()
        hold.interrupt()
        say("up")
        for child in (forked(target=runs), forked(target=opens)):
            child.start()
            ours.recv()
            child.terminate()
            child.join()
            say(child.exitcode)
        say(isinstance(signal.getsignal(signal.SIGTERM), signals._EndingHandler))
        hold.release()
        say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        """)
    assert it.ended() == (0, ["-15", "ended", "-15", "True", "True"])


# --- where SIGTERM is not ours ----------------------------------------------------------------------------------------

OWN = """
    async def main():
        signal.signal(signal.SIGTERM, own)
        async with pool():
            say("up")
            await heard()
    """
OWN_LATER = """
    async def main():
        async with pool():
            signal.signal(signal.SIGTERM, own)
            say("up")
            await heard()
    """
OWN_OF_THE_LOOP = """
    async def main():
        async with pool():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, own)
            say("up")
            await heard()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, own)
    """


@pytest.mark.parametrize("main", [OWN, OWN_LATER, OWN_OF_THE_LOOP], ids=["before", "later", "of the loop"])
def test_a_handler_of_the_application_is_left_as_it_is(main: str, client: Begin) -> None:
    it = client(f"""
    def own(*_):
        say("own")
    {main}
    asyncio.run(main())
    say(signal.getsignal(signal.SIGTERM) is own)
    """)
    it.terminate()
    it.until("own")
    it.go_on()
    assert it.ended() == (0, ["closed", "True"])


def test_a_closed_terminal_that_is_ignored_stays_ignored(client: Begin) -> None:
    """As under nohup."""
    it = client("""
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        async def main():
            async with pool():
                say("up")
                await heard()
        asyncio.run(main())
        say(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
        """)
    it.terminate(signal.SIGHUP)
    it.go_on()
    assert it.ended() == (0, ["closed", "True"])


def test_of_another_thread_nothing_is_held_back(client: Begin) -> None:
    it = client("""
        async def opens():
            async with pool():
                say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        def opens_sync():
            with pool():
                say(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
        say("up")
        for opening in (lambda: asyncio.run(opens()), opens_sync):
            thread = threading.Thread(target=opening)
            thread.start()
            thread.join()
        """)
    assert it.ended() == (0, ["True", "closed"] * 2)


def test_without_a_pool_it_is_at_its_default(client: Begin) -> None:
    it = client("""
        class Refused(Here):
            async def opened(self):
                raise RuntimeError
        def at_default():
            say({signal.getsignal(number) == signal.SIG_DFL for number in (signal.SIGTERM, signal.SIGHUP)})
        async def main():
            for provider in (Here(), Refused()):
                try:
                    async with pool(provider):
                        at_default()
                except RuntimeError:
                    pass
                at_default()
        say("up")
        asyncio.run(main())
        for provider in (Here(), Refused()):
            try:
                with pool(provider):
                    at_default()
            except RuntimeError:
                pass
            at_default()
        """)
    assert it.ended() == (0, ["{False}", "closed", "{True}", "closed", "{True}"] * 2)
