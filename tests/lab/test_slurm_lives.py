"""Some lives of `make chaos-slurm`, each as its kind and its seed draw it; and that a life can fail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cluster import missing
from slurm_lives.ground import Ground, opened
from slurm_lives.kinds import KINDS
from slurm_lives.life import live
from slurm_lives.queue import Job, command, read
from slurm_lives.referee import Ended, Facts, judge

SAID = [
    {"what": "ready", "at": 10.0},
    {"what": "round", "at": 12.0, "began": 11.0, "number": 0, "right": True, "results": []},
    {"what": "done", "at": 13.0},
    {"what": "closed", "at": 14.0},
]
JOB = Job("7", "COMPLETED", 2, "c[0-1]", 5.0, 6.0, 14.0, "work-0a1b2c", "outrider:work-0a1b2c:me@here:0123")
WHOLE = Ended(name="work", nodes=2, rounds=1, lease_s=8.0, status=0, ended_at=15.0, words=SAID, jobs=[JOB])
KILLED: dict[str, Any] = {"killed": True, "status": -9, "words": SAID[:1]}


def broken(*, left: tuple[str, ...] = (), gc_status: int = 0, found: tuple[str, ...] = (), **change: Any) -> list[str]:
    """The rules that a life of one client has broken."""
    facts = Facts(clients=[replace(WHOLE, **change)], left=left, gc_status=gc_status, found=found)
    return [each.partition(":")[0] for each in judge(facts)]


def test_a_life_in_which_nothing_was_broken():
    assert broken() == []
    assert broken(**KILLED, jobs=[replace(JOB, ended=80.0)]) == []
    assert broken(**KILLED, jobs=[replace(JOB, started=300.0, ended=360.0)]) == []
    assert broken(completing=True, jobs=[replace(JOB, state="COMPLETING", ended=None)]) == []
    again = replace(JOB, id="8", comment="outrider:work-0a1b2c:me@here:4567")
    assert all(broken(jobs=[JOB, replace(again, state=state)]) == [] for state in ("PREEMPTED", "TIMEOUT"))


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("CHAOS-1", {"status": None}),
        ("CHAOS-3", {"words": [SAID[0], {**SAID[1], "right": False}, *SAID[2:]]}),
        ("SLURM-1", {"jobs": [JOB, replace(JOB, id="8")], "surplus": 2}),
        ("SLURM-2", {"jobs": [JOB, replace(JOB, id="8", comment="outrider:work-0a1b2c:me@here:4567")]}),
        ("SLURM-3", {"words": [*SAID[:3], {"what": "closed", "at": 15.5}]}),
        ("SLURM-3", {"jobs": [replace(JOB, ended=None)]}),
        ("SLURM-3", {"jobs": [replace(JOB, ended=20.0)]}),
        ("SLURM-3", {"jobs": [replace(JOB, state="COMPLETING", ended=None)]}),
        ("SLURM-3", {"completing": True, "jobs": [replace(JOB, state="RUNNING", ended=None)]}),
        ("SLURM-3", {"completing": True, "words": [*SAID[:3], {"what": "closed", "at": 15.5}]}),
        ("SLURM-4", {**KILLED, "jobs": [replace(JOB, ended=90.0)]}),
        ("SLURM-4", {**KILLED, "jobs": [replace(JOB, ended=None)]}),
        ("SLURM-5", {"found": ("SLURM-5: a stranger's",)}),
        ("SLURM-6", {"gc_status": 1}),
        ("SLURM-6", {"left": ("a process",)}),
    ],
)
def test_what_a_life_may_not_show_is_seen(rule: str, change: dict[str, Any]):
    assert rule in broken(**change)


def test_jobs_are_read_as_squeue_shows_them():
    assert command("main0,urgent0")[2] == "squeue"
    answer = (
        "7|COMPLETED|2|c[0-1]|5|6|14|work-0a1b2c|outrider:work-0a1b2c:me@here:0123\n"
        "8|PENDING|1||5|900|1500|x|a|b\n9|RUNNING|1|c2|5|6|1500|x|(null)\n"
    )
    first, waits, runs = read(answer)
    assert first == JOB
    assert (waits.started, waits.ended, waits.comment, waits.pool) == (None, None, "a|b", "")
    assert (runs.started, runs.ended, runs.hosts) == (6.0, None, "c2")


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    if lacks := missing():
        pytest.skip(f"no cluster on this machine: {'; '.join(lacks)}")
    with opened(1) as on:
        yield on


@pytest.mark.nightly  # on a computer that does nothing else: the referee reads clocks
@pytest.mark.parametrize("kind", KINDS)
def test_a_life(ground: Ground, kind: str):
    assert live(ground, KINDS[kind], seed=1).broken == []
