"""A journal and a cloud of the tests' own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outrider.engine.cli import pool_search
from outrider.engine.cli.main import app
from outrider.providers.errors import NotAuthorized, NotGone
from outrider.providers.shared.journal import Intent, Journal
from outrider.providers.shared.pool_lock import Place
from outrider.providers.shared.resource_ownership import Thing
from outrider.providers.survey import FoundMachine, PlaceAnswer


@dataclass
class Sky:
    """A cloud as a dictionary: what there is by region. Implements `survey.Surveyor`."""

    regions: dict[str, list[Thing]] = field(default_factory=dict)
    swept: list[tuple[str, str]] = field(default_factory=list)
    swept_others: list[tuple[str, str]] = field(default_factory=list)
    refuses: set[str] = field(default_factory=set)
    stubborn: set[str] = field(default_factory=set)
    remark: str | None = None  # of what is gone

    def has(self, place: Place) -> bool:
        return "region" in place

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        if place["region"] in self.refuses:
            raise NotAuthorized("no credentials")
        there = self.regions.get(place["region"], [])
        machines = [each for each in there if isinstance(each, FoundMachine)]
        return PlaceAnswer("aws", place, tuple(machines), tuple(each for each in there if each not in machines))

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> str | None:
        if pool in self.stubborn:
            missing = f"ec2:TerminateInstances is missing for {pool}"
            raise NotGone(missing, machines=["i-1"], by=lease_s)  # it is 1970 here
        self.swept.append((place["region"], pool))
        record = journal.record(pool)
        assert record is not None
        here, claim = self.regions.get(place["region"], []), record.claim(place)
        here[:] = [each for each in here if not claim.has(each)]
        journal.settled(pool, place)
        return self.remark

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        self.swept_others.append((place["region"], pool))

    async def everywhere(self, place: Place) -> Sequence[Place]:
        return [{**place, "region": region} for region in self.regions]


class Outrider:
    """The command, run here. ``errors``: what was on stderr when `said` was last called."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self.errors = capsys, ""

    def said(self) -> str:
        read = self._capsys.readouterr()
        self.errors = read.err
        return read.out

    def __call__(self, *arguments: str) -> int:
        with pytest.raises(SystemExit) as exited:
            app(list(arguments))
        assert isinstance(exited.value.code, int)
        return exited.value.code

    def json(self, *arguments: str) -> Any:
        self.said()
        self.status = self(*arguments, "--json")
        return json.loads(self.said())


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    return Journal.open()


@pytest.fixture
def sky(monkeypatch: pytest.MonkeyPatch) -> Sky:
    sky = Sky()
    monkeypatch.setattr(pool_search, "SURVEYORS", {"aws": sky})
    return sky


@pytest.fixture
def outrider(capsys: pytest.CaptureFixture[str]) -> Outrider:
    return Outrider(capsys)
