"""A profile of a running task is taken inside of its process, or the answer says why there is none."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.node import context, inspection
from outrider.engine.node.signal_requests import PROFILE_SIGNAL
from outrider.engine.wire import messages as m
from outrider.engine.wire.log_records import Artifact, unpacked

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has begun its profile in time, however busy the computer is."""
    monkeypatch.setattr(inspection, "BEGIN_S", 60.0)


def wait_for(path: str) -> str:
    while not Path(path).exists():
        time.sleep(0.005)
    return path


def begun(path: str, end: str) -> str:
    """Wait, and tell when it has begun, and when a profile of it has."""
    Path(path).touch()
    while not Path(end).exists() and context.on_profile_step is None:
        time.sleep(0.005)
    Path(f"{path}-profiled").touch()
    return wait_for(end)


def begun_and_steps(path: str, end: str) -> str:
    """The same, and it makes steps once it is told to."""
    Path(path).touch()
    while context.on_profile_step is None:
        time.sleep(0.005)
    Path(f"{path}-profiled").touch()
    wait_for(f"{path}-steps")
    while not Path(end).exists():
        context.stepped("step")
        time.sleep(0.005)
    return end


async def exists(client: Any, path: Path) -> None:
    while not path.exists():
        await client.turn()


async def answer(client: Any, attempt: int, *, steps: int = 0, seconds: float = 0.2, name: str = "p") -> m.Profiled:
    client.send(m.Profile(attempt, name, steps, seconds))
    found = await client.until(lambda: [each for each in client.of(attempt, m.Profiled) if each.profile == name])
    return found[0]


async def test_what_a_task_is_at_comes_as_an_artifact_and_then_the_answer(make: Any, bulk: Any, tmp_path: Path) -> None:
    client = await make()
    attempt = client.run(begun, str(tmp_path / "a"), str(tmp_path / "end"))
    await exists(client, tmp_path / "a")
    began_at = time.time()
    said = await answer(client, attempt)
    assert (said.problem, said.artifact) == ("", f"profile-p-{attempt}.gz")
    (logged,) = [each for each in client.of(attempt, m.Logged) if each.blob is not None]
    assert client.heard.index(logged) < client.heard.index(said)
    (record,) = unpacked(logged.records, 1.0)
    assert isinstance(record, Artifact)
    assert record.name == said.artifact
    got = bulk(client.server)
    assert isinstance(await got.ask(m.Get(logged.blob)), m.Have)
    await client.until(lambda: len(got.data) == record.size_bytes)
    assert hashlib.sha256(got.data).hexdigest() == record.sha256
    head = json.loads(gzip.decompress(got.data).partition(b"\n")[0])
    assert head["ended_ns"] - head["began_ns"] >= 0.2e9
    assert began_at - 1 < head["began_ns"] / 1e9 < head["ended_ns"] / 1e9 < time.time() + 1
    assert any(name.startswith("wait_for (test_profiles.py:") for name in head["names"])
    (tmp_path / "end").touch()
    await client.answer(attempt)
    assert not [*tmp_path.glob("profile-*")], "nothing is left of it on the disk"


async def test_a_task_that_ends_meanwhile_is_answered_after_its_profile(make: Any, tmp_path: Path) -> None:
    client = await make()
    attempt = client.run(begun, str(tmp_path / "a"), str(tmp_path / "end"))
    await exists(client, tmp_path / "a")
    client.send(m.Profile(attempt, "p", 0, 60.0))
    await exists(client, tmp_path / "a-profiled")
    (tmp_path / "end").touch()
    done = await client.answer(attempt)
    (said,) = client.of(attempt, m.Profiled)
    assert said.artifact
    assert client.heard.index(said) < client.heard.index(done)


async def test_why_there_is_none_is_said(make: Any, tmp_path: Path) -> None:
    client = await make()
    assert (await answer(client, 99)).problem == "it waits for a slot of the node, or has ended"

    def defies(path: str, end: str) -> str:
        signal.signal(PROFILE_SIGNAL, signal.SIG_DFL)
        return begun(path, end)

    attempt = client.run(defies, str(tmp_path / "a"), str(tmp_path / "end"))
    await exists(client, tmp_path / "a")
    assert "does not handle the signal" in (await answer(client, attempt)).problem
    (tmp_path / "end").touch()
    await client.answer(attempt)


async def test_a_process_that_is_gone_is_not_waited_for(make: Any, tmp_path: Path) -> None:
    client = await make()

    def leave(path: str, end: str) -> None:
        begun(path, end)
        os._exit(3)

    attempt = client.run(leave, str(tmp_path / "a"), str(tmp_path / "end"))
    await exists(client, tmp_path / "a")
    client.send(m.Profile(attempt, "p", 0, 60.0))
    await exists(client, tmp_path / "a-profiled")
    (tmp_path / "end").touch()
    await client.until(lambda: client.of(attempt, m.Profiled))
    (said,) = client.of(attempt, m.Profiled)
    assert (said.artifact, said.problem) == ("", "its process has ended")


async def test_a_task_in_c_code_is_waited_for_so_long_and_then_goes_on(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inspection, "BEGIN_S", 0.2)
    client = await make()

    def compute(path: str, end: str) -> int:
        """Do as code does that comes back to Python late: the signal is handled then."""
        signal.pthread_sigmask(signal.SIG_BLOCK, {PROFILE_SIGNAL})
        Path(path).touch()
        wait_for(end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {PROFILE_SIGNAL})
        return 32

    attempt = client.run(compute, str(tmp_path / "a"), str(tmp_path / "end"))
    await exists(client, tmp_path / "a")
    said = await answer(client, attempt)
    assert said.artifact == ""
    assert said.problem.startswith("it has not begun within 10 s: the task's process has run no Python code")
    (tmp_path / "end").touch()
    assert client.result(await client.answer(attempt)) == 32
    assert await client.call(os.path.basename, "/x") == "x", "its process runs the next task"


async def test_a_second_one_of_the_same_process_is_refused(make: Any, tmp_path: Path) -> None:
    client = await make()
    attempt = client.run(begun_and_steps, str(tmp_path / "a"), str(tmp_path / "end"))
    await exists(client, tmp_path / "a")
    client.send(m.Profile(attempt, "first", 2, 600.0))
    await exists(client, tmp_path / "a-profiled")
    assert (await answer(client, attempt, name="second")).problem == "another profile of its process is under way"
    (tmp_path / "a-steps").touch()
    await client.until(lambda: [each for each in client.of(attempt, m.Profiled) if each.profile == "first"])
    assert (await answer(client, attempt, name="third")).artifact
    (tmp_path / "end").touch()
    await client.answer(attempt)
