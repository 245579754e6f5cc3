"""Steps and samples of a profile, as they are counted."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from outrider.engine.node import task_profile
from outrider.engine.node.task_profile import StackSpans, Steps

if TYPE_CHECKING:
    import pytest


def test_it_is_done_after_so_many_whole_steps() -> None:
    steps = Steps(0, 2)
    for at in (10, 20, 30):
        assert not steps.done
        steps.ended("optimizer", at)
    assert steps.done
    assert (steps.kind, steps.ends_ns) == ("optimizer", [10, 20, 30])


def test_what_tells_steps_best_counts() -> None:
    steps = Steps(0, 2)
    for at in range(10):
        steps.ended("should_stop", at)
        steps.ended("metrics", at + 100, at // 4)
    assert (steps.kind, steps.ends_ns) == ("metrics", [100, 104, 108]), "one of each number"
    steps.ended("optimizer", 200)
    assert not steps.done
    steps.ended("step", 300)
    assert (steps.kind, steps.ends_ns) == ("step", [300])
    steps.ended("save", 400)
    assert steps.ends_ns == [300]


def test_without_a_number_of_steps_it_is_never_done() -> None:
    steps = Steps(0, 0)
    for at in range(100):
        steps.ended("optimizer", at)
    assert not steps.done


def test_steps_are_skipped_first() -> None:
    steps = Steps(3, 1)
    for at in (1, 2):
        steps.ended("optimizer", at)
        assert not steps.skipped
    steps.ended("optimizer", 3)
    assert steps.skipped
    steps.begin("optimizer", 4)
    assert not steps.done
    steps.ended("optimizer", 5)
    assert steps.done
    assert steps.ends_ns == [4, 5]


def outer(then: Callable[[], Any]) -> Any:
    return then()


def inner() -> FrameType:
    return sys._getframe()


def other() -> FrameType:
    return sys._getframe()


def test_functions_that_are_seen_again_go_on_and_lie_within_their_callers() -> None:
    spans = StackSpans()
    spans.add(outer(inner), 100)
    spans.add(outer(inner), 200)
    spans.add(outer(other), 300)
    spans.add(None, 400)
    spans.end(500)
    mine = [span for span in spans.spans if "test_task_profile.py" in span.name]
    line = inner.__code__.co_firstlineno
    assert mine[0] == (f"inner (test_task_profile.py:{line})", 100, 300)
    assert [(span.name.partition(" ")[0], span.began_ns, span.ended_ns) for span in mine[1:3]] == [
        ("other", 300, 400),
        ("outer", 100, 400),
    ]


def test_there_is_an_end_to_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_profile, "MOST_SPANS", 3)
    spans = StackSpans()
    for at in range(10):
        spans.add(outer(inner), at)
        spans.end(at)
    assert len(spans.spans) == 3
    assert spans.left_out > 10


class _Torch:
    """A torch that lacks something."""

    optim = profiler = object()
    __version__ = "1.9"

    class _C:
        class _profiler:  # noqa: N801
            @staticmethod
            def _ExperimentalConfig(**options: bool) -> None:  # noqa: N802
                raise TypeError(options)


def test_an_old_torch_is_said_to_be_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", _Torch())  # type: ignore[arg-type]
    profiler, said = task_profile.begin_torch()
    assert profiler is None
    assert said.startswith("torch 1.9 cannot profile all threads")


def test_a_torch_that_fails_is_told_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Torch._C._profiler, "_ExperimentalConfig", lambda **_: object())
    monkeypatch.setitem(sys.modules, "torch", _Torch())  # type: ignore[arg-type]
    assert task_profile.begin_torch().problem.startswith("torch's profiler did not begin: AttributeError")
    assert threading.active_count() < 50
