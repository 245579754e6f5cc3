"""A frame that one side sends and the other never gets, by a defect of ours: the simulator finds each kind."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from outrider.engine.wire import codec
from outrider.engine.wire import messages as wire
from outrider.engine.wire.session import Session
from outrider.testing.simulator.connection import PlayedConnection
from outrider.testing.simulator.draw import draw
from outrider.testing.simulator.machines import Daemon
from outrider.testing.simulator.play import play
from outrider.testing.simulator.rules.nodes import NodeRules
from outrider.testing.simulator.scenario import Scenario

from . import own_scenarios

SEEDS = 40  # at most; most are found within ten
LOST = 0.1  # of the frames of a kind


def lose(patch: pytest.MonkeyPatch, kind: type[Any]) -> None:
    """Have sessions forget some frames of a kind before these are counted, so that no reconnect repairs that."""
    dice, send, send_body, send_shared = Random(1), Session.send, Session.send_body, Session.send_shared

    def is_lost(sent: type[Any]) -> bool:
        return sent is kind and dice.random() < LOST

    patch.setattr(Session, "send", lambda self, message: is_lost(type(message)) or send(self, message))
    patch.setattr(Session, "send_body", lambda self, body: is_lost(type(codec.decode(body))) or send_body(self, body))
    patch.setattr(Session, "send_shared", lambda self, frame: is_lost(wire.View) or send_shared(self, frame))


@pytest.mark.parametrize(
    ("kind", "rules", "scenario", "first"),
    [
        (wire.Define, {"SIM-2"}, draw, 1),
        (wire.Run, {"SIM-9", "SIM-41"}, draw, 0),
        (wire.Done, {"SIM-9", "SIM-41"}, draw, 0),
        (wire.Failed, {"SIM-9", "SIM-41"}, draw, 7),
        (wire.Ended, {"SIM-9", "SIM-35", "SIM-41"}, draw, 7),
        (wire.Kill, {"SIM-35"}, draw, 8),
        (wire.View, {"SIM-4", "SIM-17"}, draw, 0),
        (wire.Ports, {"SIM-40", "SIM-9"}, own_scenarios.hasty_broadcasts, 0),
    ],
)
def test_frame_that_is_lost_is_found(
    kind: type[Any], rules: set[str], scenario: Callable[[int], Scenario], first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose(monkeypatch, kind)
    for seed in range(first, first + SEEDS):
        violation = play(scenario(seed), keep=0).violation
        if violation is not None:
            assert violation.rule in rules
            return
    raise AssertionError(f"no loss of a {kind.__name__} was found")


@pytest.mark.parametrize("kind", [wire.Run, wire.Done, wire.Failed, wire.Ended])
def test_lost_attempt_is_settled_at_the_next_heartbeat(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node counts as lost, and what it had runs again elsewhere: every job ends, with the right result."""
    differences: list[tuple[int, ...]] = []
    monkeypatch.setattr(Daemon, "compare_attempts", lambda _, attempts: differences.append(attempts))
    monkeypatch.setattr(PlayedConnection, "beats", True)
    monkeypatch.setattr(NodeRules, "_judge_loss", lambda *_: None)  # of a node that lives: the defect is its own
    lose(monkeypatch, kind)
    assert [play(draw(seed), keep=0).violation for seed in range(10)] == [None] * 10
    assert differences


def test_lost_comparison_of_ports_is_repaired_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, wire.PortsTaken)
    assert [play(own_scenarios.hasty_broadcasts(seed), keep=0).violation for seed in range(10)] == [None] * 10
