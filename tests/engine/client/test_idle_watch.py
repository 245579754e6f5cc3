"""The watch of ``max_idle`` hears from a pool's events which machines there are."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from outrider.actors import events as ev
from outrider.engine.client import budget
from outrider.engine.client.budget import Cost, IdleWatch

pytestmark = pytest.mark.anyio
EVERY_S, MAX_S = 5.0, 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ready(node: int) -> ev.NodeReady:
    return ev.NodeReady(node, node, 1, 2)


def sampled(node: int) -> ev.NodeSampled:
    return ev.NodeSampled(node, EVERY_S, 0.0, 8.0, 1, 2, 3, 4, 5, 6, ())


@pytest.fixture
def idle_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[IdleWatch, float], bool]:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(budget, "clock", lambda: clock.now)

    def idle_for(watch: IdleWatch, seconds: float) -> bool:
        """Let node 0 do nothing for so long; return whether that ends the pool."""
        for _ in range(int(seconds / EVERY_S)):
            clock.now += EVERY_S
            watch(sampled(0))
        return watch.error is not None

    return idle_for


async def test_a_machine_in_the_queue_keeps_no_pool_that_does_nothing(
    idle_for: Callable[[IdleWatch, float], bool],
) -> None:
    watch = IdleWatch(MAX_S, EVERY_S, observe=lambda _: None, cost=lambda: Cost(1.0, 2.0), calls=lambda: (0, 0))
    watch(ready(0))
    watch(ev.NodeLaunching(1, "job-1", 1.0))
    assert not idle_for(watch, 2 * MAX_S), "it may boot"
    watch(ev.NodeQueued(1, "pending: Priority"))
    assert not idle_for(watch, MAX_S / 2)
    watch(ev.NodeQueued(1, "pending: Resources"))
    watch(ev.NodeStarted(1, MAX_S / 2))
    assert not idle_for(watch, 2 * MAX_S), "it boots"
    watch(ev.NodeFailed(1, "gone"))
    watch(ev.NodeLaunching(2, "job-2", 1.0))
    watch(ev.NodeQueued(2, "pending: Priority"))
    assert not idle_for(watch, MAX_S / 2)
    watch(ev.NodeQueued(2, "pending: Resources"))
    assert idle_for(watch, MAX_S / 2 + EVERY_S), "IDLE-5"
