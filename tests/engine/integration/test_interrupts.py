"""One Ctrl-C at a random moment while a pool is opened, used or closed: the program ends, and nothing is left of it.

Four forms of a program are interrupted at a moment each; `make nightly` does so with all at two hundred. For
others: ``python tests/engine/integration/test_interrupts.py SEED PROGRAMS``, which prints how long each took to end.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE_S = 60.0  # on a busy computer; one that ends needs less than 3 s
LONGEST_S = 1.1  # from the beginning of the opening to an interrupt; an undisturbed program takes about 0.7 s
BEGINNING = """
import asyncio, signal, sys
import outrider
from outrider import Local, Pool

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore

def pool():
    return Pool(provider=Local(), nodes=1, console="silent")

def begins():
    print("begins", flush=True)
"""
FORMS = {
    "with": """
        begins()
        with pool() as it:
            for _ in range(30):
                list(it.map(str.upper, ["a", "b"]))
        """,
    "nested": """
        def use(it):
            return list(it.map(str.upper, "abc" * 100))

        def work():
            begins()
            with pool() as it:
                try:
                    return use(it)
                finally:
                    it.snapshot()

        work()
        """,
    "open and close": """
        from outrider import SyncPool
        begins()
        it = SyncPool(pool()).open()
        try:
            list(it.map(str.upper, "abc" * 100))
        finally:
            it.close()
        """,
    "open alone": """
        from outrider import SyncPool
        begins()
        it = SyncPool(pool()).open()
        list(it.map(str.upper, "abc" * 100))
        """,
    "two pools": """
        begins()
        with pool() as it, pool() as other:
            list(other.map(str.upper, it.map(str.upper, "abc")))
        """,
    "async with": """
        async def main():
            begins()
            async with pool() as it:
                for _ in range(30):
                    await it.map(str.upper, ["a", "b"])

        asyncio.run(main())
        """,
    "async open and close": """
        async def main():
            begins()
            it = await pool().open()
            try:
                await it.map(str.upper, "abc" * 100)
            finally:
                await it.close()

        asyncio.run(main())
        """,
    "notebook": """
        cells = [
            "with pool() as it: print(list(it.map(str.upper, 'abc')))",
            "it = outrider.SyncPool(pool()).open()",
            "list(it.map(str.upper, 'abc'))",
            "it.close()",
        ]

        async def run_cells():  # as ipykernel does: each in the main thread, while a loop runs there
            names = {"pool": pool, "outrider": outrider}
            for cell in cells:
                try:
                    exec(cell, names)
                except KeyboardInterrupt:
                    print("interrupted")
                except NameError:
                    assert "it" not in names
                except outrider.PoolClosed:
                    pass
                await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        begins()
        while True:
            try:
                loop.run_until_complete(run_cells())
                break
            except KeyboardInterrupt:  # between two cells
                pass
        """,
}


def lives(state: Path) -> list[str]:
    """Return what is left of pools of this state folder: their folders, and processes that have it in their
    environment.
    """
    found = [str(each) for each in state.glob("local/*")]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if os.fsencode(state) in (process / "environ").read_bytes():
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def ended(form: str, after_s: float, state: Path) -> tuple[float, int, str]:
    """Run a program, interrupt it so long after it has begun, and return how long it then took, and how it ended."""
    program = BEGINNING + textwrap.dedent(FORMS[form])
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "OUTRIDER_STATE": str(state)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "begins\n"
        time.sleep(after_s)
        began = time.monotonic()
        client.send_signal(signal.SIGINT)
        try:
            _, complaints = client.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            client.kill()
            raise
    return time.monotonic() - began, client.returncode, complaints


def check(form: str, after_s: float, state: Path) -> float:
    """Return how long the program took to end."""
    story = f"{form!r}, interrupted after {after_s:.4f} s"
    took_s, status, complaints = ended(form, after_s, state)
    assert status in {0, 1, -signal.SIGINT}, (story, status, complaints)
    if status and (complaints or status != -signal.SIGINT):  # Python's own end is killed without a word
        assert complaints.rstrip().endswith("KeyboardInterrupt"), (story, complaints)
    assert "NameError" not in complaints, (story, complaints)
    patience = time.monotonic() + PATIENCE_S
    while left := lives(state):
        assert time.monotonic() < patience, (story, left)
        time.sleep(0.01)
    return took_s


def moments(seed: int) -> Iterator[tuple[str, float]]:
    """Yield forms in turn, each with a random moment."""
    rng = random.Random(seed)
    while True:
        for form in FORMS:
            yield form, rng.uniform(0, LONGEST_S if rng.random() < 0.6 else 0.3)  # more of them while it opens


@pytest.mark.parametrize("form", ["with", "open and close", "async with", "notebook"])
def test_interrupted_program_ends(form: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    check(form, random.Random(form).uniform(0, 0.3), tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(25))
def test_program_interrupted_at_other_moments_ends(seed: int, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    for (form, after_s), _ in zip(moments(seed), range(8), strict=False):
        check(form, after_s, tmp_path)


def main(seed: int, programs: int) -> None:
    times: list[float] = []
    with tempfile.TemporaryDirectory() as state:
        for (form, after_s), number in zip(moments(seed), range(programs), strict=False):
            try:
                times.append(check(form, after_s, Path(state)))
            except (AssertionError, subprocess.TimeoutExpired) as error:
                print(f"{number}: {error!r}"[:3000], flush=True)
            else:
                if times[-1] > 3.0:
                    print(f"{number}: {form!r} after {after_s:.4f} s took {times[-1]:.1f} s", flush=True)
    print(f"{len(times)} of {programs} ended well, the slowest {max(times):.2f} s after its interrupt")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
