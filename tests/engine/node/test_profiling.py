"""The worker's side of profiles: which request begins one."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import RLock, get_ident
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from outrider.engine.node import context
from outrider.engine.node.profiling import Profiling
from outrider.engine.node.signal_requests import PROFILE_SIGNAL, ProfileRequest, request_file
from outrider.engine.wire.messages import Profiled


class ImportedLate(ModuleType):
    """The module of profiles. During its import, the signal of another request comes."""

    def __getattr__(self, name: str) -> Any:
        if name != "TaskProfile":
            raise AttributeError(name)
        self.TaskProfile = BegunProfile
        signal.raise_signal(PROFILE_SIGNAL)
        return BegunProfile


class BegunProfile:
    def __init__(self, request: ProfileRequest, _thread: int, _scratch: Path, over: Any) -> None:
        self.request, self.over = request, over

    def task_ended(self) -> None:
        pass

    def begin(self) -> None:
        begun.append(self)


begun: list[BegunProfile] = []


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Profiled]]:
    answers: list[Profiled] = []
    begun.clear()
    monkeypatch.setattr(context._process, "profiling", None)
    monkeypatch.setitem(sys.modules, "outrider.engine.node.task_profile", ImportedLate("task_profile"))
    before = signal.getsignal(PROFILE_SIGNAL)
    task: Any = SimpleNamespace(closing=[])
    log: Any = SimpleNamespace(wanted=True)
    tasks = {attempt: (task, get_ident()) for attempt in (1, 2)}
    Profiling(str(tmp_path), tasks=tasks, send=lambda message, _: answers.append(message), log=log, lock=RLock())  # type: ignore[arg-type, return-value]
    yield answers
    signal.signal(PROFILE_SIGNAL, before)


def ask(folder: Path, attempt: int) -> None:
    request_file(folder, os.getpid(), attempt).write_bytes(ProfileRequest(attempt, "p", 0, 1.0).written())


def test_request_during_the_import_for_another_is_refused(tmp_path: Path, answers: list[Profiled]) -> None:
    ask(tmp_path, 1)
    ask(tmp_path, 2)
    signal.raise_signal(PROFILE_SIGNAL)
    (profile,) = begun
    (refused,) = answers
    assert {profile.request.attempt, refused.attempt} == {1, 2}
    assert refused.problem == "another profile of its process is under way"
    profile.over(profile, SimpleNamespace(fd=-1, problem=""))
    ask(tmp_path, 1)
    signal.raise_signal(PROFILE_SIGNAL)
    assert len(begun) == 2
