"""The program that cancels a job whose batch shell is gone: its decision, and the program with made-up commands."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.slurm.step import last_step, programs

NODES = [f"c{number}" for number in range(4)]
SOME = st.lists(st.sampled_from(NODES), unique=True)
SQUEUE = """#!/bin/sh
[ ! -e "$0.gone" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
cat "$0.nodes"
"""
WITHIN_S = 60.0


def holds(files: list[str], nodes: list[str], is_last: Callable[..., bool]) -> None:
    """LAST-1, as one says it: nobody else is there."""
    others = [each for each in nodes if each != "c1" and (each == "c0" or each in files)]
    assert is_last("c1", "c0", files, nodes) == (not others)


@given(SOME, SOME)
def test_a_step_is_the_last_when_no_node_has_another_or_the_batch_shell(files: list[str], nodes: list[str]) -> None:
    """LAST-1."""
    holds(files, nodes, last_step.is_last)


@pytest.mark.parametrize(
    "broken",
    [
        lambda node, _, files, nodes: not ({*files} - {node}).intersection(nodes),
        lambda node, batch, _, nodes: not ({batch} - {node}).intersection(nodes),
    ],
)
def test_the_rule_falls_without_its_guard(broken: Callable[..., bool]) -> None:
    """LAST-1."""
    with pytest.raises(AssertionError):
        holds(["c2"], ["c1", "c2"], broken)
        holds([], ["c0", "c1"], broken)


class Site:
    """Slurm's commands, and a job's folder in which the step on c2 has not ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path / "job"
        (self.folder / "nodes").mkdir(parents=True)
        text = programs.texts()[programs.LAST]
        (self.folder / programs.LAST).write_text(
            text.replace("LOOK_S = 10.0", "LOOK_S = 0.05").replace("sleep(1.0)", "sleep(0)")
        )
        for name, said in {
            "squeue": SQUEUE,
            "scontrol": '#!/bin/sh\necho "$3" | tr , "\\n"\n',
            "scancel": '#!/bin/sh\necho "$@" >"$0.said"\n',
        }.items():
            (path / name).write_text(said)
            (path / name).chmod(0o755)
        self.has("c0,c1,c2")
        (self.folder / "nodes" / "c2").touch()

    def has(self, nodes: str) -> None:
        (self.path / "new").write_text(f"{nodes}\n")
        (self.path / "new").rename(self.path / "squeue.nodes")

    def start(self, port: int, node: str = "c1", path: str | None = None) -> subprocess.Popen[str]:
        path = f"{self.path}:{os.environ['PATH']}" if path is None else path
        env = {"PATH": path, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": node}
        env |= {"SLURM_SRUN_COMM_HOST": "127.0.0.1", "SLURM_SRUN_COMM_PORT": str(port)}
        argv = [sys.executable, "-I", "-S", str(self.folder / programs.LAST), str(self.folder), "c0"]
        return subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True)

    @property
    def cancelled(self) -> bool:
        return (self.path / "scancel.said").exists()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.fixture
def closed() -> Iterator[int]:
    """A port at which nobody listens, and which nobody else is given meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])


def test_a_job_is_cancelled_when_its_other_nodes_are_gone_and_not_before(site: Site, closed: int) -> None:
    with site.start(closed) as last:
        for nodes in ("c0,c1,c2", "c0,c1", "c1,c2"):
            site.has(nodes)
            time.sleep(0.3)
            assert last.poll() is None, nodes
            assert not site.cancelled
        site.has("c1")
        assert last.communicate(timeout=WITHIN_S)[1].startswith("outrider: job 7 is cancelled, as nothing runs in it")
    assert last.returncode == 0
    assert (site.path / "scancel.said").read_text() == "7\n"


def test_whose_srun_lives_leaves_the_end_to_the_batch_shell(site: Site) -> None:
    site.has("c1")
    with socket.create_server(("127.0.0.1", 0)) as srun, site.start(srun.getsockname()[1]) as last:
        assert last.wait(WITHIN_S) == 0
    assert not site.cancelled


def test_the_node_of_the_batch_shell_leaves_it_to_that(site: Site, closed: int) -> None:
    with site.start(closed, node="c0") as last:
        assert last.wait(WITHIN_S) == 0
    assert not site.cancelled


def test_a_job_that_has_ended_is_left_alone(site: Site, closed: int) -> None:
    (site.path / "squeue.gone").touch()
    with site.start(closed) as last:
        assert last.wait(WITHIN_S) == 0
    assert not site.cancelled


def test_without_slurms_commands_it_says_so(site: Site, closed: int) -> None:
    with site.start(closed, path=str(site.folder)) as last:
        assert "nobody ends job 7 before its time limit" in last.communicate(timeout=WITHIN_S)[1]
    assert last.returncode == 1
