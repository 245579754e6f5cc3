"""A record reaches a tracker whole and once, whatever fails: files that grow, a tracker that is away, kills."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.engine.record.trackers import feed as feeds
from outrider.engine.record.trackers import state_file as cursors
from outrider.engine.record.trackers.base import Artifact, Away, End, Point, Rejected, Sender, TrackedRun, Tracker
from outrider.engine.record.trackers.feed import Feed
from outrider.engine.record.trackers.state_file import Cursor, StateFile, cut

FAULTS = ["away", "killed before", "killed after", "killed before saving", "killed after saving"]
Step = tuple[str, Any]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 7)),
    st.tuples(st.just("half"), st.none()),
    st.tuples(st.just("artifact"), st.none()),
    st.tuples(st.just("params"), st.integers(0, 3)),
    st.tuples(st.just("look"), st.one_of(st.none(), st.tuples(st.sampled_from(FAULTS), st.integers(0, 4)))),
)


class Killed(BaseException):
    """What no code of ours catches: the process is gone."""


class World(Tracker):
    """A record that grows, its receiver, and the process that sends, which may be killed at any call.

    The receiver takes each key once, as one that reads `Idempotency-Key` does.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.points: dict[str, list[Point]] = {}
        self.params: dict[str, Any] = {}
        self.artifacts: list[str] = []
        self.ends: dict[str, End] = {}
        self.begun = 0
        self.end: End | None = None
        self.written: list[int] = []  # the values of whole lines
        self.fault: tuple[str, int] | None = None
        self.values = iter(range(1_000_000))
        self.half = ""
        self.sent_positions: list[int] = []
        (directory / "run.json").write_text(json.dumps({"spec": {}, "git": {}}))

    @property
    def name(self) -> str:
        return "world"

    def open(self, run: TrackedRun) -> Sender:
        return Receiver(self)

    # --- the record ---------------------------------------------------------------------------------------------------

    def append(self, count: int) -> None:
        with (self.directory / "metrics.jsonl").open("a") as file:
            for _ in range(count):
                value = next(self.values)
                file.write((self.half or _line(value))[len(self.half) // 2 if self.half else 0 :])
                self.written.append(value if not self.half else json.loads(self.half)["values"]["v"])
                self.half = ""

    def append_half(self) -> None:
        if not self.half:
            self.half = _line(next(self.values))
            with (self.directory / "metrics.jsonl").open("a") as file:
                file.write(self.half[: len(self.half) // 2])

    def append_artifact(self) -> None:
        said = {"name": f"a{next(self.values)}", "path": "artifacts/a", "size_bytes": 1, "sha256": "0", "at": 1.0}
        with (self.directory / "artifacts.jsonl").open("a") as file:
            file.write(json.dumps(said) + "\n")

    def set_params(self, number: int) -> None:
        new = self.directory / "params.json.new"
        new.write_text(json.dumps({f"p{each}": number for each in range(number)}))
        new.rename(self.directory / "params.json")

    # --- faults -------------------------------------------------------------------------------------------------------

    def call(self, take: Callable[[], None], *, saving: bool = False) -> None:
        """Do something that may fail: send, or save the state."""
        kind, left = self.fault or ("", -1)
        if kind.endswith("saving") != saving:
            kind = ""
        elif left > 0:
            self.fault, kind = (kind, left - 1), ""
        if kind == "away":
            self.fault = None
            raise Away("it is away")
        if kind.startswith("killed before"):
            raise Killed
        take()
        if kind.startswith("killed after"):
            raise Killed


class Receiver(Sender):
    def __init__(self, world: World) -> None:
        self._world = world

    def begun(self) -> None:
        self._world.call(lambda: setattr(self._world, "begun", self._world.begun + 1))

    def params(self, values: Mapping[str, Any]) -> None:
        self._world.call(lambda: self._world.params.update(values))

    def points(self, points: Sequence[Point]) -> None:
        world, key = self._world, self.key
        saved = StateFile(world.directory, "world").load()
        first, last = map(int, key.split(":")[-2:])
        assert (saved.position("metrics.jsonl"), saved.until) == (first, last), "CURSOR-1"

        def take() -> None:
            before = world.points.setdefault(key, list(points))
            assert before == list(points), "CURSOR-2"

        world.call(take)

    def artifact(self, artifact: Artifact) -> None:
        world = self._world

        def take() -> None:
            if artifact.name not in world.artifacts:
                world.artifacts.append(artifact.name)

        world.call(take)

    def ended(self, end: End) -> None:
        world = self._world

        def take() -> None:
            got = [point.value for points in world.points.values() for point in points]
            assert got == world.written, "CURSOR-4"
            world.ends[self.key] = end

        world.call(take)


class Process(Feed):
    """A process that sends, without a clock."""

    def __init__(self, world: World) -> None:
        super().__init__(world.directory, world, wait=lambda _: None, clock=self._time)
        self.world, self.now = world, 0.0
        self._load()

    def _time(self) -> float:
        self.now = getattr(self, "now", 0.0) + 1.0
        return self.now

    def _look(self) -> None:
        self._end, self.over = self.world.end, self.world.end is not None

    def _save(self) -> None:
        before = StateFile(self.directory, "world").load().position("metrics.jsonl")
        self.world.call(super()._save, saving=True)
        assert self.cursor.position("metrics.jsonl") >= before, "CURSOR-3"


def _line(value: int) -> str:
    said = {"at": 1.0, "function": "f", "job": 1, "rank": 0, "node": 0, "generation": 1, "step": value}
    return json.dumps({**said, "values": {"v": value}}, separators=(",", ":")) + "\n"


def play(steps: Sequence[Step]) -> World:
    """Play steps, then let all faults end, and the run; return what has become of it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.object(feeds, "POINTS", 3),
        patch.object(cursors, "CHUNK_LINES", 2),
    ):
        world = World(Path(folder))
        process = Process(world)
        for kind, what in steps:
            match kind:
                case "append":
                    world.append(what)
                case "half":
                    world.append_half()
                case "artifact":
                    world.append_artifact()
                case "params":
                    world.set_params(what)
                case _:
                    world.fault = what
                    try:
                        process._step()
                    except Killed:
                        world.fault = None
                        process = Process(world)
                    world.fault = None
        if world.half:
            world.append(1)
        world.end = End("finished", 2.0, 0)
        for _ in range(200):
            if process.complete:
                break
            process._step()
        assert process.complete, process.cursor.problem
        got = [point.value for points in world.points.values() for point in points]
        assert got == world.written, "each point once, in order"
        assert len(world.ends) == 1
        assert {name: value for name, value in _params(world).items() if world.params.get(name) != value} == {}
        assert world.artifacts == _artifacts(world)
        return world


def _params(world: World) -> dict[str, Any]:
    path = world.directory / "params.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def _artifacts(world: World) -> list[str]:
    path = world.directory / "artifacts.jsonl"
    return [json.loads(line)["name"] for line in path.read_text().splitlines()] if path.exists() else []


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=14))
def test_each_line_arrives_once_whatever_fails(steps: list[Step]) -> None:
    """CURSOR-1 to CURSOR-4: see `World` for where each is checked."""
    play(steps)


AWAY_WITH_OTHER_FILES: list[Step] = [("append", 1), ("artifact", None), ("look", ("away", 2)), ("artifact", None)]
KILLED_AFTER: list[Step] = [("append", 3), ("look", ("killed after", 1)), ("append", 3)]
KILLED_BEFORE: list[Step] = [("append", 3), ("look", ("killed before", 1)), ("append", 3)]
AWAY: list[Step] = [("append", 3), ("look", None), ("append", 3), ("look", ("away", 0))]


def test_what_is_being_sent_stays_so_while_other_files_are_read() -> None:
    """CURSOR-1, as Hypothesis found it broken."""
    play(AWAY_WITH_OTHER_FILES)


@contextmanager
def no_mark_in_the_state() -> Iterator[None]:
    """CURSOR-1, CURSOR-2: where what is being sent ends is not kept."""
    real = Cursor.facts
    with patch.object(Cursor, "facts", lambda self: {**real(self), "until": None}):
        yield


@contextmanager
def a_mark_that_is_not_read() -> Iterator[None]:
    """CURSOR-2: what is sent after a kill is what the file has by then."""
    with patch.object(Cursor, "marked", lambda self: 0):
        yield


@contextmanager
def away_is_taken() -> Iterator[None]:
    """CURSOR-3: what a tracker did not take counts as done."""
    real = Feed._deliver

    def deliver(self: Feed, what: str, key: str, send: Callable[[], None]) -> bool:
        try:
            return real(self, what, key, send)
        except Away:
            return False

    with patch.object(Feed, "_deliver", deliver):
        yield


@contextmanager
def the_end_at_once() -> Iterator[None]:
    """CURSOR-4: the end is sent before the points."""
    with patch.object(Feed, "_send_points", lambda self, sender: False):
        yield


@pytest.mark.parametrize(
    ("broken", "steps"),
    [
        (no_mark_in_the_state, AWAY),
        (a_mark_that_is_not_read, KILLED_AFTER),
        (away_is_taken, AWAY),
        (the_end_at_once, AWAY),
    ],
)
def test_the_cursor_falls_without_its_guard(broken: Callable[[], Any], steps: list[Step]) -> None:
    """CURSOR-1, CURSOR-2, CURSOR-3 and CURSOR-4, each by what breaks it."""
    play(steps)
    with pytest.raises(AssertionError), broken():
        play(steps)


def test_what_is_rejected_is_left_out_and_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.append(2)
    with patch.object(Receiver, "points", side_effect=Rejected("too hot")):
        process = Process(world)
        process._step()
    world.append(1)
    world.written = world.written[2:]
    world.end = End("failed", 2.0, 1)
    while not process.complete:
        process._step()
    assert process.cursor.rejected == 1
    assert process.cursor.reasons == ["2 points: too hot"]
    assert [len(points) for points in world.points.values()] == [1]


def test_what_the_state_has_does_not_come_from_a_broken_file() -> None:
    assert Cursor.read({"at": [], "points": "many", "until": "x", "ended": 1}) == Cursor()


def test_pieces_are_whole_lines() -> None:
    assert cut(b"one\ntwo\nthr") == 8
    assert cut(b"thr") == 0
    assert cut(b"x" * (cursors.CHUNK_BYTES + 1)) == cursors.CHUNK_BYTES  # which is none
    assert cut(b"x\n" * 5000) == 2 * cursors.CHUNK_LINES
