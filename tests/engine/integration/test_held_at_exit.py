"""Programs that end while they hold large objects and results that were read in part: at once, and without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.engine.node import blobs

TASKS = f"""
from outrider import Local, Pool, compute

LARGE = {blobs.LARGE_BYTES}

@compute
def length(data):
    return len(data)

@compute
def made(size):
    return bytes(size)

@compute
def counted(count):
    yield from range(count)

def held(pool):
    argument = length(bytearray(LARGE))
    pool.run(argument)
    given = pool.put(bytearray(LARGE))
    assert pool.run(length(given)) == LARGE
    streamed = iter(pool.stream(counted(5)))
    mapped = iter(pool.map(made, range(3)))
    completed = iter(pool.as_completed([made(1), made(2)]))
    next(streamed), next(mapped), next(completed)
    return argument, given, pool.run(made(LARGE), keep=True), streamed, mapped, completed
"""
CLOSED = """
with Pool(provider=Local(), console="silent") as pool:
    here = held(pool)
"""
OPEN = """
pool = Pool(provider=Local(), console="silent").__enter__()
here = held(pool)
"""
ALONE = f"""
from outrider.engine.serialization.payload import Blob

shared, copied = (Blob(name, [bytearray({blobs.LARGE_BYTES})], {blobs.LARGE_BYTES}) for name in "ab")
shared.share()
copied.begin_copy()
copied.copy()
"""


@pytest.mark.parametrize("program", [TASKS + CLOSED, TASKS + OPEN, ALONE], ids=["closed pool", "open pool", "blobs"])
def test_a_program_ends_that_holds_large_objects_and_unread_results(program: str, tmp_path: Path) -> None:
    environment = {**os.environ, "OUTRIDER_STATE": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout + ended.stderr) == (0, "")
