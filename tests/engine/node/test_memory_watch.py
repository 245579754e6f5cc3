"""The memory of process trees is looked at now and then, and trees that hold too much are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from outrider.engine.node.memory_watch import LOOK_S, MemoryWatch, held_bytes

MB = 1_000_000


def test_it_looks_now_and_then_and_names_a_process_once() -> None:
    held = {1: 5, 2: 50}
    watch = MemoryWatch(lambda pid, _: held[pid])
    assert watch.due() is None
    watch.add(1, 10)
    watch.add(2, 10)
    assert watch.look(0.0) == [(2, 50)]
    held[1] = 11
    assert watch.look(LOOK_S / 2) == []
    assert watch.due() == LOOK_S
    assert watch.look(LOOK_S) == [(1, 11)]
    assert watch.due() is None


def test_a_process_that_has_ended_is_not_looked_at() -> None:
    watch = MemoryWatch(lambda *_: pytest.fail("it is gone"))
    watch.add(1, 10)
    watch.remove(1)
    assert watch.look(0.0) == []


TREE = """
import os, sys, time
shared = bytearray(os.urandom(1000) * 60_000)
os.fork()
own = bytearray(os.urandom(1000) * 40_000)
os.write(1, b"+")
time.sleep(600)
"""


@pytest.fixture
def tree() -> Iterator[int]:
    """A process with a child: both have 40 MB of their own, and share 60 MB."""
    with subprocess.Popen([sys.executable, "-c", TREE], stdout=subprocess.PIPE, start_new_session=True) as root:
        assert root.stdout is not None
        assert root.stdout.read(1) + root.stdout.read(1) == b"+" * 2
        yield root.pid
        os.killpg(root.pid, signal.SIGKILL)


def test_a_tree_is_measured_with_its_children_and_what_is_shared_once(tree: int) -> None:
    assert 135 * MB < held_bytes(tree, 0) < 185 * MB  # twice 100 MB by what each of them maps
    assert held_bytes(tree, 10_000 * MB) == 0, "it is not looked at closely"


def test_nothing_is_held_by_a_process_that_is_gone() -> None:
    assert held_bytes(2**22 - 1, -1) == 0
