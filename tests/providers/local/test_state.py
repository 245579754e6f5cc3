"""What killed pools left in the state directory is removed; what lives is not."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import anyio
import pytest

from outrider.providers.errors import JournalError
from outrider.providers.local.state import UNOWNED_S, PoolDirectory, sweep
from outrider.providers.shared.paths import state_root


def test_a_directory_lives_as_long_as_its_owner(tmp_path):
    mine = PoolDirectory(tmp_path, "mine")
    sweep(tmp_path / "local")
    assert mine.path.is_dir()
    mine.remove()
    assert not mine.path.exists()


def test_a_directory_whose_owner_was_killed_is_removed(tmp_path):
    code = (
        "import os, sys, pathlib; from outrider.providers.local.state import PoolDirectory;"
        "PoolDirectory(pathlib.Path(sys.argv[1]), 'theirs'); print(flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
    with owner:
        assert owner.stdout.readline() == b"\n"
        theirs = tmp_path / "local" / "theirs"
        sweep(theirs.parent)
        assert theirs.is_dir()
        owner.kill()
        owner.wait()
        sweep(theirs.parent)
        assert not theirs.exists()


def test_a_living_process_with_the_dead_owners_pid_saves_nothing(tmp_path):
    stale = tmp_path / "stale"
    stale.mkdir()
    (stale / "owner").write_text(f"{os.getpid()}\n")
    sweep(tmp_path)
    assert not stale.exists()


def test_a_directory_that_is_being_made_is_left_alone(tmp_path):
    made, forgotten = tmp_path / "made", tmp_path / "forgotten"
    for directory in (made, forgotten):
        directory.mkdir()
    long_ago = forgotten.stat().st_mtime - 2 * UNOWNED_S
    os.utime(forgotten, (long_ago, long_ago))
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [made]


def test_what_is_no_pools_directory_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    sweep(tmp_path)
    sweep(tmp_path / "absent")
    assert (tmp_path / "notes.txt").exists()


def test_only_the_user_may_look_into_it(tmp_path):
    directory = PoolDirectory(tmp_path / "state", "p")
    for path in (directory.path, directory.path.parent, directory.path.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((directory.path / "owner").stat().st_mode) == 0o600
    directory.remove()


@pytest.mark.parametrize(
    ("given", "environment", "root"),
    [
        ("/a", {"OUTRIDER_STATE": "/b", "XDG_STATE_HOME": "/c"}, "/a"),
        (None, {"OUTRIDER_STATE": "/b", "XDG_STATE_HOME": "/c"}, "/b"),
        (None, {"XDG_STATE_HOME": "/c"}, "/c/outrider"),
        (None, {"HOME": "/d"}, "/d/.local/state/outrider"),
        ("~/e", {"HOME": "/d"}, "/d/e"),
    ],
)
def test_where_it_is(given, environment, root, monkeypatch):
    for name in ("OUTRIDER_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert state_root(given and Path(given)) == Path(root)


@contextmanager
def free_descriptors(count: int) -> Iterator[None]:
    """No more than so many can be opened."""
    with ExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        null = stack.enter_context(Path(os.devnull).open())
        highest = max(int(link.name) for link in Path("/proc/self/fd").iterdir())
        while (filled := os.dup(null.fileno())) <= highest:  # the numbers between those that are open
            stack.callback(os.close, filled)
        os.close(filled)
        resource.setrlimit(resource.RLIMIT_NOFILE, (filled + count, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield


@pytest.mark.anyio
async def test_a_pool_that_has_no_descriptors_says_so_and_leaves_nothing(provider, entry_points, tmp_path):
    open_before = len(list(Path("/proc/self/fd").iterdir()))
    for count in range(6):
        with free_descriptors(count), pytest.raises(JournalError, match="has no descriptors left"):
            async with provider.open("p", entry_points):
                pass
        assert list((tmp_path / "local").glob("*")) == []
        with anyio.fail_after(60):  # a thread of an earlier test may still look for what dead pools have left
            while len(list(Path("/proc/self/fd").iterdir())) > open_before:
                await anyio.sleep(0.01)
