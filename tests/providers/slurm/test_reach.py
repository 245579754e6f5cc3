"""What carries connections to steps where a pool is to find out itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.slurm import fleet, site
from outrider.providers.slurm.fleet import PATIENCE_S, WaysIn

NODES = ["c0", "c1", "c2"]
EVENT = st.tuples(
    st.sampled_from(["ask", "answered", "failed", "ready"]), st.sets(st.sampled_from(NODES)), st.floats(0, 1)
)


def holds(events: list[tuple[str, set[str], float]]) -> None:
    ways, now, asked = fleet.WaysIn(), 0.0, set[str]()
    opened, ready_at, closed = set[str](), dict[str, float](), False
    for what, nodes, pause_s in events:
        now += pause_s
        if what == "ask":
            new = ways.ask(sorted(nodes))
            assert not (closed and new), "REACH-3"
            asked.update(new)
        elif what == "answered" and asked:
            ways.answered(asked, opened_now := nodes & asked)
            opened |= opened_now
            asked, closed = set(), not opened
        elif what == "failed":
            ways.failed(asked)
            asked = set()
        for node in nodes if what == "ready" else ():
            since = ready_at.setdefault(node, now) if node not in opened else now
            by_ssh = ways.by_ssh(node, now)
            assert by_ssh is not True or node in opened, "REACH-1"
            assert by_ssh is not None or now - since < PATIENCE_S, "REACH-2"
            assert by_ssh is True or node not in opened


@given(st.lists(EVENT, max_size=20))
def test_ssh_is_taken_where_a_node_has_let_one_in_and_nobody_waits_long(
    events: list[tuple[str, set[str], float]],
) -> None:
    """REACH-1, REACH-2, REACH-3."""
    holds(events)


class Trusts(WaysIn):
    def by_ssh(self, node: str, now: float) -> bool | None:
        return node not in self._probing


class WaitsForEver(WaysIn):
    def by_ssh(self, node: str, now: float) -> bool | None:
        return None if node in self._probing else super().by_ssh(node, now)


class AsksAgain(WaysIn):
    def answered(self, asked: object, lets_in: object) -> None:
        super().answered(asked, lets_in)  # type: ignore[arg-type]
        self._closed = False


@pytest.mark.parametrize(("broken", "rule"), [(Trusts, "REACH-1"), (WaitsForEver, "REACH-2"), (AsksAgain, "REACH-3")])
def test_the_rule_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch, broken: type[WaysIn], rule: str) -> None:
    one, two = {"c0"}, {"c1"}
    events = [
        ("ready", two, 0.0),
        ("ask", one, 0.0),
        ("ready", one, 0.0),
        ("ready", one, 1.0),
        ("answered", set(), 0.0),
    ]
    events += [("ask", one, 0.0)]
    holds(events)  # type: ignore[arg-type]
    monkeypatch.setattr(fleet, "WaysIn", broken)
    with pytest.raises(AssertionError, match=rule):
        holds(events)  # type: ignore[arg-type]


def test_all_nodes_are_asked_at_once_and_not_for_long(tmp_path: Path) -> None:
    """The limit is short for the node that does not answer alone: a busy computer may start the others' ssh late."""
    answers = "case $last in c0) ;; c1) exit 255;; *) exec sleep 600;; esac"
    limited = f'echo "$1" >>"$0.said"; [ "$4" != c2 ] || set -- 0.2 ssh -T c2 true; exec {shutil.which("timeout")} "$@"'
    for name, does in {"ssh": f"for each; do last=$node node=$each; done\n{answers}", "timeout": limited}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    script = site._LETS_IN.replace("SSH", "ssh -T")
    path = f"{tmp_path}:{os.environ['PATH']}"
    argv = ["sh", "-c", script, "open", "60", "c0", "c1", "c2"]
    done = subprocess.run(argv, env={"PATH": path}, timeout=120, capture_output=True, text=True, check=True)
    assert done.stdout == "outrider:open:c0\n"
    assert (tmp_path / "timeout.said").read_text() == "60\n" * 3
