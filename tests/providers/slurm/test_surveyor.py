"""`outrider ps` and `outrider gc` on a Slurm cluster, against a Slurm made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from outrider.providers.errors import BadRequest, NotGone
from outrider.providers.shared import login_host
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.login_options import path_list, paths_of
from outrider.providers.slurm import surveyor
from outrider.providers.slurm.provider import Slurm
from outrider.providers.slurm.squeue import Label, owner
from outrider.providers.slurm.surveyor import SlurmSurveyor, _login_host

from .by_hand import HandMade

pytestmark = pytest.mark.anyio
HERE = {"slurm": os.uname().nodename}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HandMade:
    made = HandMade()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    return made


def left(site: HandMade, journal: Journal) -> None:
    """Leave a pool as a dead client does: with one job, that the journal knows."""
    intent = journal.intend("p", "slurm-job", "token", HERE, {"folder": "/jobs/token"})
    journal.happened(intent, ["1"])
    comment = str(Label("p", owner(), "token"))
    site.jobs["1"] = {"state": "RUNNING", "nodes": "c0", "comment": comment, "folder": "/jobs/token"}


async def test_a_job_that_one_answer_lacks_is_ended_all_the_same(site: HandMade) -> None:
    left(site, journal := Journal.open())
    site.hidden_for = 1
    await SlurmSurveyor().sweep(HERE, "p", journal)
    assert site.alive == []
    assert journal.records() == []


async def test_a_job_that_slurm_has_forgotten_is_over(site: HandMade) -> None:
    left(site, journal := Journal.open())
    del site.jobs["1"]
    await SlurmSurveyor().sweep(HERE, "p", journal)
    assert journal.records() == []


class WithoutPower(HandMade):
    """Its job has the nodes c0 and c1. Slurm ends it when it is cancelled, and shows it as ending until it counts c1 as
    down, which takes minutes.
    """

    def on_look(self, *_: str) -> str:
        return "outrider:root:/jobs\noutrider:user:me\noutrider:kill:1\n"

    def on_end(self, *_: str) -> None:
        """No step of c1 ends."""

    def on_scancel(self, _: str, *jobs: str) -> None:
        for job in jobs:
            self.jobs[job] |= {"state": "COMPLETING", "nodes": "c1"}


@pytest.fixture
def without_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> WithoutPower:
    made = WithoutPower()
    monkeypatch.setattr(login_host, "Here", lambda: made)
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    for name, seconds in {"AGAIN_S": 0.02, "FORCE_AFTER_S": 0.05, "KILL_S": 0.1, "SILENT_S": 0.1}.items():
        monkeypatch.setattr(surveyor, name, seconds)
    return made


async def test_a_job_is_over_when_slurm_has_killed_it_on_all_nodes_that_answer(without_power: WithoutPower) -> None:
    left(without_power, journal := Journal.open())
    without_power.jobs["1"]["nodes"] = "c[0-1]"
    began = anyio.current_time()
    with anyio.fail_after(60):
        said = await SlurmSurveyor().sweep(HERE, "p", journal)
    assert anyio.current_time() - began >= 1.1, "what runs on nodes that answer has the KillWait of the site to end in"
    assert said.startswith("Slurm shows job 1 on c1 as ending until it has cleaned up there")
    assert "scancel 1" in without_power.said
    assert journal.records() == []


async def test_a_job_that_slurm_does_not_end_is_named_with_its_nodes(
    without_power: WithoutPower, monkeypatch: pytest.MonkeyPatch
) -> None:
    left(without_power, journal := Journal.open())
    without_power.jobs["1"]["nodes"] = "c[0-5]"
    monkeypatch.setattr(without_power, "on_scancel", lambda *_: "")
    monkeypatch.setattr(surveyor, "CONFIRM_S", 0.2)
    with anyio.fail_after(60):
        with pytest.raises(NotGone, match="may still be running: job 1 on c0, c1, c2, c3 and 2 others"):
            await SlurmSurveyor().sweep(HERE, "p", journal)
    assert [each.pool for each in journal.records()] == ["p"]


@pytest.mark.parametrize("gone", ["known_hosts", "config"])
async def test_a_way_whose_file_is_gone_is_an_error_of_its_pool_alone(tmp_path: Path, gone: str) -> None:
    (file := tmp_path / "a:b").touch()
    provider = Slurm("login", known_hosts=[file]) if gone == "known_hosts" else Slurm("login", config=file)
    file.unlink()
    with pytest.raises(BadRequest, match=r"The way to login is not there any more: .*there is no file .*a:b") as caught:
        await SlurmSurveyor().survey(provider.journal_place, [])
    assert "Put the file back" in caught.value.advice


def test_the_way_in_the_journal_is_the_providers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = ["a:b", "c\\d", "plain"]
    for name in files:
        (tmp_path / name).touch()
    place = Slurm("me@login:22", known_hosts=files, key="plain", config="a:b").journal_place
    monkeypatch.chdir("/")
    found = _login_host(place, place["slurm"])
    assert found.text == "me@login:22"
    assert found.login.known_hosts == tuple(str(tmp_path / name) for name in files)
    assert found.login.keys == (str(tmp_path / "plain"),)
    assert found.login.config == (str(tmp_path / "a:b"),)


def test_a_list_of_plain_paths_is_as_older_versions_wrote_it() -> None:
    assert path_list(["/a", "/b c"]) == "/a:/b c"
    assert paths_of("/a:/b c") == ["/a", "/b c"]
    assert paths_of("") == []
