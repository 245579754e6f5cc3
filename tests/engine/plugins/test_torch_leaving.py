"""A worker's process group is gone, all of it, before the next task's is made. No torch needed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from outrider.engine.plugins import torch


class Distributed:
    """As ``torch.distributed``: it says that it is not initialized before it has cleared everything."""

    def __init__(self, *, says_so: bool) -> None:
        self.says_so = says_so
        self.go_on = threading.Event()
        self.initialized, self.cleared = True, False

    def is_initialized(self) -> bool:
        return self.initialized

    def destroy_process_group(self) -> None:
        self.initialized = not self.says_so
        self.go_on.wait(60)
        self.initialized, self.cleared = False, True


@pytest.fixture
def leaving(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(torch, "LEAVE_S", 0.001)
    return torch._GroupTeardown()


@pytest.mark.parametrize("says_so", [True, False])
def test_the_next_task_waits_until_all_is_cleared(leaving: Any, *, says_so: bool) -> None:
    group = Distributed(says_so=says_so)
    leaving.start(group)
    threading.Timer(0.05, group.go_on.set).start()
    leaving.wait(group)
    assert group.cleared


@pytest.mark.parametrize("says_so", [True, False])
def test_hanging_teardown_is_an_error_for_each_later_task_until_it_ends(
    leaving: Any, monkeypatch: pytest.MonkeyPatch, *, says_so: bool
) -> None:
    monkeypatch.setattr(torch, "GONE_S", 0.01)
    group = Distributed(says_so=says_so)
    leaving.start(group)
    try:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="cannot be ended"):
                leaving.wait(group)
    finally:
        group.go_on.set()
    monkeypatch.setattr(torch, "GONE_S", 60)
    leaving.wait(group)


def test_a_group_that_a_task_made_itself_and_left_is_an_error(leaving: Any) -> None:
    with pytest.raises(RuntimeError, match="cannot be ended"):
        leaving.wait(Distributed(says_so=True))


def test_without_an_earlier_group_nothing_is_waited_for(leaving: Any) -> None:
    group = Distributed(says_so=True)
    group.initialized = False
    leaving.wait(group)
