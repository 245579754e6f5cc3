"""Modules that open a pool while they are imported: the program runs once, and workers refuse to do the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HELPERS = """
from outrider import compute

@compute
def size(thing):
    return thing.size
"""
OPENS = """
import helpers
from outrider import Local, Pool, compute

@compute
def increment(number):
    return number + 1

class Thing:
    size = 4

with Pool(provider=Local(), console="silent", run=False) as pool:
    shared = pool.put(Thing())
    print(list(pool.map(increment, range(3))), helpers.size(Thing()) >> pool, helpers.size(shared) >> pool)
"""
PROGRAM = """
import multiprocessing, sys
import opens
from outrider import Local, Pool, SpecError, Worker, compute

@compute
def nested(number):
    with Pool(provider=Local(), console="silent", run=False) as pool:
        return helper(number) >> pool

@compute
def helper(number):
    return -number

if __name__ == "__main__":
    for kind in ("process", "thread"):
        with Pool(provider=Local(), worker=Worker(kind=kind), console="silent", run=False) as pool:
            try:
                opens.increment(1) >> pool
            except SpecError as error:
                print(error)
            if kind == "process":
                print(nested(2) >> pool)
    child = multiprocessing.get_context("spawn").Process(target=print)
    child.start()
    child.join()
    print(child.exitcode)
"""


def test_a_pool_of_an_imported_module_opens_once(tmp_path: Path) -> None:
    for name, text in (("helpers", HELPERS), ("opens", OPENS), ("program", PROGRAM)):
        (tmp_path / f"{name}.py").write_text(text)
    ran = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    first, *others = ran.stdout.splitlines()
    assert first == "[1, 2, 3] 4 4", ran.stderr
    refused = (
        "increment could not be loaded on node 0: opens opens a pool while it is imported, here by a worker that loads "
        'a task: that would open a pool for each of them. Put those lines of opens below `if __name__ == "__main__":`, '
        "or into a function that your program calls."
    )
    assert others == [refused, "-2", refused, "1"]
    assert "SpecError: opens opens a pool while it is imported, here by a process that multiproc" in ran.stderr
