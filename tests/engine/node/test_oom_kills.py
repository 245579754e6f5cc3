"""Whether a worker that died of SIGKILL was killed for memory, by the kernel's counters of cgroups and computers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider.engine.node import worker_pool
from outrider.engine.node.worker_pool import RECENT_S, OomKills
from outrider.engine.wire.messages import Cause

own_counter = worker_pool.own_counter  # which the fixture of all tests here replaces in its module

V1 = "9:name=systemd:/\n4:memory:{path}\n3:cpuset:/\n0::/\n"
V2 = "0::{path}\n"
MOUNT_1 = "34 28 0:30 {root} {place}/memory rw,relatime shared:14 - cgroup cgroup rw,memory\n"
MOUNT_2 = "30 23 0:26 {root} {place} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n"
OTHERS = "22 1 254:0 / / rw,relatime - ext4 /dev/root rw\n35 28 0:31 / {place}/cpu rw - cgroup cgroup rw,cpu\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n"
EVENTS = "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"


@pytest.fixture
def chosen(tmp_path: Path) -> Callable[..., str]:
    """The file that is chosen, below the place of all cgroups, for a process with these groups and mounts."""

    def choose(cgroup: str, mounts: str, files: Mapping[str, str]) -> str:
        process, place = tmp_path / "self", tmp_path / "groups"
        process.mkdir()
        (process / "cgroup").write_text(cgroup)
        (process / "mountinfo").write_text((OTHERS + mounts).replace("{place}", str(place)))
        for name, text in files.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
        file = own_counter(process, tmp_path / "vmstat")
        return str(file.relative_to(place if file.is_relative_to(place) else tmp_path))

    return choose


@pytest.mark.parametrize(
    ("path", "root", "files", "expected"),
    [
        ("/user.slice/a.scope", "/", ["user.slice/a.scope", "user.slice"], "user.slice/a.scope/memory.events"),
        ("/user.slice/a.scope", "/", ["user.slice"], "user.slice/memory.events"),  # memory is not told apart below
        ("/", "/", ["."], "memory.events"),  # a container with a view of its own
        ("/docker/1234", "/docker/1234", ["."], "memory.events"),  # and one with the host's
        ("/docker/1234/job", "/docker/1234", ["job", "."], "job/memory.events"),
        ("/docker/1234", "/docker/5678", ["."], "vmstat"),
        ("/../other", "/", [], "vmstat"),
        ("/", "/", [], "vmstat"),  # the root of version 2 counts nothing
    ],
)
def test_the_nearest_cgroup_that_counts_is_looked_at(
    chosen: Callable[..., str], path: str, root: str, files: list[str], expected: str
) -> None:
    mounts = MOUNT_2.replace("{root}", root)
    assert chosen(V2.format(path=path), mounts, {f"{file}/memory.events": EVENTS for file in files}) == expected


@pytest.mark.parametrize(
    ("path", "root", "files", "expected"),
    [
        ("/job", "/", ["job", "."], "memory/job/memory.oom_control"),
        ("/docker/1234", "/docker/1234", ["."], "memory/memory.oom_control"),
        ("/docker/1234/job/step_0", "/docker/1234", ["job/step_0", "."], "memory/job/step_0/memory.oom_control"),
        ("/job", "/", ["."], "vmstat"),  # which does not count what is below
        ("/docker/1234", "/docker/5678", ["."], "vmstat"),
    ],
)
def test_a_cgroup_of_version_1_counts_for_itself_alone(
    chosen: Callable[..., str], path: str, root: str, files: list[str], expected: str
) -> None:
    mounts = MOUNT_2.replace("{root}", "/") + MOUNT_1.replace("{root}", root)
    there = {f"memory/{file}/memory.oom_control": OOM_CONTROL for file in files}
    assert chosen(V1.format(path=path), mounts, there) == expected


def test_what_lies_below_another_mount_is_passed_over(chosen: Callable[..., str]) -> None:
    """A part of the hierarchy may be mounted over all of it."""
    mounts = MOUNT_1.replace("{root}", "/") + MOUNT_1.replace("{root}", "/docker/1234")
    there = {"memory/job/memory.oom_control": OOM_CONTROL}
    assert chosen(V1.format(path="/docker/1234/job"), mounts, there) == "memory/job/memory.oom_control"


@pytest.mark.parametrize("text", ["oom_kill_disable 0\nunder_oom 0\n", "words\n", ""])
def test_a_file_that_does_not_count_kills_is_passed_over(chosen: Callable[..., str], text: str) -> None:
    """Kernels before 4.13 have it without the count."""
    mounts = MOUNT_1.replace("{root}", "/")
    assert chosen(V1.format(path="/job"), mounts, {"memory/job/memory.oom_control": text}) == "vmstat"


def test_where_nothing_is_known_of_cgroups_the_computer_counts(tmp_path: Path, chosen: Callable[..., str]) -> None:
    assert own_counter(tmp_path / "missing", tmp_path / "vmstat") == tmp_path / "vmstat"
    assert chosen("", "", {}) == "vmstat"


def test_this_process_has_a_counter() -> None:
    assert "oom_kill " in own_counter().read_text()


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
    monkeypatch.setattr(worker_pool, "own_counter", lambda: group / "memory.oom_control")

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
    monkeypatch.setattr(worker_pool, "own_counter", own_counter)
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
