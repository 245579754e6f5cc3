"""Some lives of `make chaos-aws`, each as its kind and its seed draw it; and that a life can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from campaigns.alone import played
from campaigns.kinds import KINDS
from campaigns.life import live
from campaigns.referee import Ended, Facts, Machine, judge
from campaigns.site import Client
from campaigns.wish import Wish
from lives.turns import turns

ERROR = {"kinds": ["CapacityError", "OutriderError"], "type": "CapacityError", "typed": True, "text": "none to be had"}
RAISED = {"what": "raised", "at": 19.0, "notes": [], "cause": "", "inside": [], **ERROR}
SAID = [
    {"what": "ready", "at": 10.0},
    {"what": "round", "at": 12.0, "number": 0, "right": True, "results": []},
    {"what": "done", "at": 13.0},
    {"what": "closed", "at": 19.0},
]
MACHINE = Machine("i-1", "token", 5.0, 18.0)
WHOLE = Ended(name="work", nodes=1, rounds=1, lease_s=8.0, status=0, ended_at=20.0, words=SAID, machines=[MACHINE])


def broken(*, left: tuple[str, ...] = (), gc_status: int = 0, found: tuple[str, ...] = (), **change: Any) -> list[str]:
    """The rules that a life of one client has broken."""
    client = replace(WHOLE, **change)
    facts = Facts(clients=[client], asked={"token": 1}, left=left, gc_status=gc_status, found=found)
    return [each.partition(":")[0] for each in judge(facts)]


def test_a_life_in_which_nothing_was_broken():
    assert broken() == []
    assert broken(killed=True, status=-9, words=SAID[:1], machines=[replace(MACHINE, terminated=80.0)]) == []
    assert broken(status=1, words=[SAID[0], RAISED], fits=frozenset({"CapacityError"})) == []


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("CHAOS-1", {"status": None}),
        ("CHAOS-2", {"status": 1, "words": SAID[:2]}),
        ("CHAOS-2", {"status": 1, "words": [SAID[0], RAISED]}),
        (
            "CHAOS-2",
            {"status": 1, "words": [SAID[0], {**RAISED, "typed": False}], "fits": frozenset({"CapacityError"})},
        ),
        ("CHAOS-2", {"whole": False}),
        ("CHAOS-3", {"words": [SAID[0], {**SAID[1], "right": False}, *SAID[2:]]}),
        ("CHAOS-4", {"status": 1, "words": [*SAID[:3], RAISED], "fits": frozenset({"CapacityError"})}),
        ("CHAOS-6", {"machines": [MACHINE, replace(MACHINE, id="i-2", token="other")]}),
        ("CHAOS-7", {"machines": [replace(MACHINE, terminated=25.0)]}),
        ("CHAOS-7", {"killed": True, "status": -9, "machines": [replace(MACHINE, terminated=90.0)]}),
        ("CHAOS-7", {"killed": True, "status": -9, "machines": [replace(MACHINE, terminated=None)]}),
        ("CHAOS-9", {"found": ("CHAOS-9: a stranger's",)}),
        ("CHAOS-10", {"gc_status": 1}),
        ("CHAOS-10", {"left": ("security group",)}),
        ("CHAOS-11", {"errors": "Task exception was never retrieved"}),
    ],
)
def test_what_a_life_may_not_show_is_seen(rule: str, change: dict[str, Any]):
    assert rule in broken(**change)


def test_a_second_launch_of_a_token_is_seen():
    assert "CHAOS-5" in broken(machines=[MACHINE, Machine("i-2", "token", 19.0, 19.5)])


def test_an_error_names_the_machines_that_run_on():
    left = replace(MACHINE, terminated=24.0)
    error: dict[str, Any] = {"status": 1, "fits": frozenset({"CapacityError"}), "machines": [left]}
    assert broken(words=[SAID[0], RAISED], **error) == ["CHAOS-8"]
    assert broken(words=[SAID[0], {**RAISED, "notes": ["i-1 runs"]}], **error) == []


def test_all_kinds_have_a_life_before_any_has_another():
    assert turns(["lost", "names"], range(7, 9)) == [("lost", 7), ("names", 7), ("lost", 8), ("names", 8)]


def test_a_life_that_fails_is_told_as_broken():
    [verdict] = played([("no such kind", 7)], jobs=1)
    assert (verdict.kind, verdict.seed) == ("no such kind", 7)
    assert "KeyError" in verdict.broken[0]


def test_a_client_may_end_before_it_has_read_its_line(tmp_path: Path):
    client = Client("campaigns.client", Wish(), key="AKIA0", env={}, before=["true"], log=tmp_path / "log")
    client.process.wait()
    client.go()
    assert client.end(10.0) == 0


@pytest.mark.parametrize(
    "kind",
    [
        "half",
        "spot-broadcast",
        "no-space",
        *(pytest.param(each, marks=pytest.mark.nightly) for each in ("cut-xml", "names")),
    ],
)
def test_a_life(kind: str):
    assert live(KINDS[kind], seed=1).broken == []
