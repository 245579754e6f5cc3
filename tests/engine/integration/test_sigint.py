"""Ctrl-C several times at once: a program ends, and its pools before it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PATIENCE_S = 300.0  # ten lives, each of which opens a pool
BEGINNING = """
import asyncio, os, signal, sys, threading, time
from contextlib import asynccontextmanager
from outrider import Local, Pool, compute
from outrider.engine.client import signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore

@compute
def sleep():
    time.sleep(600)

SENDING = []

def interrupts(after_s, count=3):
    def send():
        time.sleep(after_s)
        for _ in range(count):
            sent.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.02)
    sent = []
    thread = threading.Thread(target=send)
    SENDING.append((thread, sent))
    thread.start()

def all_are_sent():
    "On a busy computer the last may come when the pool has ended that held them: it did not come with the first."
    while SENDING:
        thread, sent = SENDING[-1]
        try:
            thread.join()
            SENDING.pop()
        except KeyboardInterrupt:
            if time.monotonic() - sent[0] < signals.LINGER_S / 2:
                print("not held")

def pool():
    return Pool(provider=Local(), nodes=1, console="silent")
"""


def ended(program: str, state: Path) -> tuple[int, list[str]]:
    """The status of a program that has ended by itself, and what it has said."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", BEGINNING + textwrap.dedent(program)],
        env={**os.environ, "OUTRIDER_STATE": str(state)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        text=True,
        check=False,
    )
    assert list(state.glob("local/*")) == []
    return done.returncode, done.stdout.splitlines()


def test_three_at_once_end_an_asynchronous_program_whatever_it_is_at(tmp_path: Path) -> None:
    """Ten of its lives: interrupted while the pool opens, while it works and while it is closed."""
    program = """
        class Interrupted(Local):
            turn = 0

            @asynccontextmanager
            async def open(self, pool, entry_points):  # which the pool does when it holds the signal
                if self.turn % 5:
                    interrupts(after_s=0.1 + self.turn * 0.08)
                async with super().open(pool, entry_points) as fleet:
                    yield fleet
                    if not self.turn % 5:  # the pool is being closed
                        interrupts(after_s=0, count=2)
                        while not SENDING[-1][1]:
                            time.sleep(0.001)

        async def main(turn):
            async with Pool(provider=Interrupted(), nodes=1, console="silent") as it:
                if turn % 5:
                    await it.run(sleep())
        for turn in range(10):
            Interrupted.turn = turn
            try:
                try:
                    asyncio.run(main(turn))
                finally:
                    all_are_sent()
            except KeyboardInterrupt:
                print("interrupted")
            all_are_sent()
        print("its end")
        """
    status, said = ended(program, tmp_path)
    assert (status, said) == (0, [*["interrupted"] * 10, "its end"])


def test_three_at_once_end_a_program_that_waits(tmp_path: Path) -> None:
    program = """
        with pool() as it:
            interrupts(after_s=0.1)
            it.run(sleep())
        """
    status, _ = ended(program, tmp_path)
    assert status in {-signal.SIGINT, 1}  # as Python says it, unless another came while it did


def test_what_comes_with_the_first_or_while_its_pool_ends_is_not_passed_on(tmp_path: Path) -> None:
    program = """
        async def main():
            it = asyncio.current_task()
            async with pool():
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    print("cancelled", it.uncancel())
                signals.SAME_S = 0.0
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0)
                except KeyboardInterrupt:
                    print("again")
            print(signal.getsignal(signal.SIGINT).func.__name__)
        asyncio.run(main())
        """
    assert ended(program, tmp_path) == (0, ["cancelled 0", "again", "_on_sigint"])


OWN = """
def own(*_):
    print("own")

async def main():
    {sets}
    async with pool():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    "sets",
    ["signal.signal(signal.SIGINT, own)", "asyncio.get_running_loop().add_signal_handler(signal.SIGINT, own)"],
    ids=["handler", "handler of the loop"],
)
def test_a_handler_of_the_application_is_told_of_each(sets: str, tmp_path: Path) -> None:
    assert ended(OWN.format(sets=sets), tmp_path) == (0, ["own", "own"])
