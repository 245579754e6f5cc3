"""`outrider ps` and `outrider gc` on a Slurm cluster, against a Slurm made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from outrider.providers import login_host
from outrider.providers.errors import BadRequest
from outrider.providers.journal import Journal
from outrider.providers.login_files import path_list, paths_of
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


@pytest.mark.parametrize("gone", ["known_hosts", "config"])
async def test_a_way_whose_file_is_gone_is_an_error_of_its_pool_alone(tmp_path: Path, gone: str) -> None:
    (file := tmp_path / "a:b").touch()
    provider = Slurm("login", known_hosts=[file]) if gone == "known_hosts" else Slurm("login", config=file)
    file.unlink()
    with pytest.raises(BadRequest, match=r"The way to login is not there any more: .*a:b is not a file") as caught:
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
