"""The memory of process trees is looked at now and then, and trees that hold too much are found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.engine.node.forkserver import LOOK_S, LOOKS_APART, MemoryWatch, held_bytes

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


def test_a_look_that_takes_long_is_not_taken_again_at_once() -> None:
    """The fork server that looks has to fork, and to report deaths, in between."""
    times = iter((10.0, 10.5))
    watch = MemoryWatch(lambda *_: 0, lambda: next(times))
    watch.add(1, 10)
    assert watch.look(0.0) == []
    assert watch.due() == 0.5 * LOOKS_APART


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


MAPPED = """
import mmap, os, sys, time
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
sum(mapped[at] for at in range(0, len(mapped), 4096))
os.write(1, b"+")
time.sleep(600)
"""


def test_files_that_are_only_read_are_not_held(tmp_path: Path) -> None:
    """The kernel takes them out of memory when it needs that: a mapped data set is no reason to end a task."""
    (tmp_path / "data").write_bytes(os.urandom(1000) * 60_000)
    words = [sys.executable, "-c", MAPPED, str(tmp_path / "data")]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(1) == b"+"
        held = held_bytes(reader.pid, 0)
        reader.kill()
    assert 0 < held < 40 * MB


def test_nothing_is_held_by_a_process_that_is_gone() -> None:
    assert held_bytes(2**22 - 1, -1) == 0
