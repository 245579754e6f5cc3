"""Whether a worker that died of SIGKILL was killed for memory, by the kernel's counters of cgroups and computers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider.engine.node import oom_kills
from outrider.engine.node.oom_kills import RECENT_S, OomKills
from outrider.engine.wire.messages import Cause

own_counter = oom_kills.own_counter  # which the fixture of all tests here replaces in its module

V1 = "9:name=systemd:/\n4:memory:{path}\n3:cpuset:/\n0::/\n"
V2 = "0::{path}\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
EVENTS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("cgroup", "files", "chosen"),
    [
        (V2.format(path="/user.slice/a.scope"), ["user.slice/a.scope/memory.events", "user.slice/memory.events"], 0),
        (V2.format(path="/user.slice/a.scope"), ["user.slice/memory.events"], 0),  # memory is not told apart below
        (V2.format(path="/"), ["memory.events"], 0),  # a container with a view of its own
        (V2.format(path="/docker/1234"), ["memory.events"], 0),  # and one with the host's
        (V2.format(path="/../other"), [], None),
        (V2.format(path="/"), [], None),  # the root of version 2 counts nothing
        (V1.format(path="/job"), ["memory/job/memory.oom_control", "memory/memory.oom_control", "memory.events"], 0),
        (V1.format(path="/docker/1234"), ["memory/memory.oom_control"], 0),
        ("5:cpu,memory:/job\n", ["memory/job/memory.oom_control"], 0),
        ("", ["memory.events"], None),
    ],
)
def test_the_nearest_cgroup_that_counts_is_looked_at(
    tmp_path: Path, cgroup: str, files: list[str], chosen: int | None
) -> None:
    process, groups, computer = tmp_path / "cgroup", tmp_path / "groups", tmp_path / "vmstat"
    process.write_text(cgroup)
    for name in files:
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(OOM_CONTROL if name.endswith("control") else EVENTS)
    assert own_counter(process, groups, computer) == (computer if chosen is None else groups / files[chosen])


@pytest.mark.parametrize("text", ["oom_kill_disable 0\nunder_oom 0\n", "words\n", ""])
def test_a_file_that_does_not_count_kills_is_passed_over(tmp_path: Path, text: str) -> None:
    """Kernels before 4.13 have it without the count."""
    (tmp_path / "cgroup").write_text(V1.format(path="/job"))
    (tmp_path / "memory/job").mkdir(parents=True)
    (tmp_path / "memory/job/memory.oom_control").write_text(text)
    assert own_counter(tmp_path / "cgroup", tmp_path, tmp_path / "vmstat") == tmp_path / "vmstat"


def test_where_nothing_is_known_of_cgroups_the_computer_counts(tmp_path: Path) -> None:
    assert own_counter(tmp_path / "missing", tmp_path, tmp_path / "vmstat") == tmp_path / "vmstat"


def test_kills_for_memory_are_counted_since_the_last_question(tmp_path: Path) -> None:
    counter = tmp_path / "vmstat"
    counter.write_text("pgfault 5\noom_kill 3\n")
    kills = OomKills(counter)
    assert not kills.news()
    counter.write_text("pgfault 9\noom_kill 4\n")
    assert kills.news()
    assert not kills.news()


@pytest.mark.parametrize("text", ["oom_kill many\n", "oom_kill\n", None])
def test_a_counter_that_cannot_be_read_tells_of_no_kill(tmp_path: Path, text: str | None) -> None:
    counter = tmp_path / "vmstat"
    if text is not None:
        counter.write_text(text)
    assert not OomKills(counter).news()


def test_kills_for_memory_of_long_ago_were_of_others(tmp_path: Path) -> None:
    """Nodes of one cgroup see each other's, and a worker dies of a SIGKILL of its own an hour later."""
    counter = tmp_path / "vmstat"
    counter.write_text("oom_kill 3\n")
    kills = OomKills(counter)
    kills.look(0.0)
    counter.write_text("oom_kill 4\n")
    for now in (1.0, RECENT_S, 2 * RECENT_S):
        kills.look(now)
    assert not kills.news()
    counter.write_text("oom_kill 6\n")
    kills.look(3 * RECENT_S)
    kills.look(3 * RECENT_S + 2.0)
    assert [kills.news() for _ in range(3)] == [True, True, False]
    counter.write_text("oom_kill 7\n")
    kills.look(4 * RECENT_S)
    assert [kills.news() for _ in range(2)] == [True, False]


CGROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.anyio
@pytest.mark.oom
@pytest.mark.skipif(not os.access(CGROUPS / "cgroup.procs", os.W_OK), reason="needs a memory cgroup (v1) and root")
async def test_a_task_killed_for_memory_says_so(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    group = CGROUPS / f"outrider-test-{os.getpid()}"
    monkeypatch.setattr(oom_kills, "own_counter", lambda: group / "memory.oom_control")

    def hog(directory: str) -> int:
        (Path(directory) / "cgroup.procs").write_text(str(os.getpid()))
        return len(bytearray(200_000_000))

    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("50000000")
        client = await make()
        ended = await client.call(hog, str(group))
        assert ended.cause is Cause.MEMORY
    finally:
        group.rmdir()


@pytest.mark.anyio
@pytest.mark.oom
@pytest.mark.skipif(not os.access(CGROUPS / "cgroup.procs", os.W_OK), reason="needs a memory cgroup (v1) and root")
async def test_a_kill_in_another_cgroup_explains_no_death(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both died of SIGKILL, and it was taken for the kernel's, as the counter of the whole computer had risen."""
    monkeypatch.setattr(oom_kills, "own_counter", own_counter)
    group = CGROUPS / f"outrider-test-{os.getpid()}"
    client = await make()
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("50000000")
        assert await anyio.to_thread.run_sync(_killed_for_memory, group)
        ended = await client.call(_kill_myself)
        assert ended.cause is Cause.SIGNAL
    finally:
        group.rmdir()


def _killed_for_memory(group: Path) -> bool:
    hog = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); bytearray(200_000_000)"
    return subprocess.run([sys.executable, "-c", hog], check=False).returncode == -signal.SIGKILL


def _kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
