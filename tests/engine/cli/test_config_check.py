"""`outrider config check` says everything that is wrong with a file at once, and shows settings without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.engine.cli.common import guarded
from outrider.engine.cli.main import app
from outrider.engine.config.check import checked_pool
from outrider.engine.config.files import read

if TYPE_CHECKING:
    from .conftest import Outrider

GOOD = """
[pools.train]
provider = { name = "aws", region = "eu-west-1" }
nodes = [2, 8]
ranks_per_node = 1
image = { env = { HF_TOKEN = { secret = "HF_TOKEN" }, API_KEY = "plain" } }
volumes = [{ url = "s3://bucket/data", mount = "/data" }]
"""
BAD = """
[pools.bad]
nods = 3
lease = -1
max_restarts = "x"
image = { requirements = "req.txt", env = { A = { secret = "NOT_THERE" } } }
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hush-hush")
    monkeypatch.delenv("NOT_THERE", raising=False)
    return tmp_path / "outrider.toml"


def test_a_file_in_order_is_shown_without_secrets(file: Path, outrider: Outrider) -> None:
    file.write_text(GOOD)
    assert outrider("config", "check") == 0
    said = outrider.said()
    assert f"{file} [pools.train] is in order" in said
    assert '"region": "eu-west-1"' in said
    assert "Secret.env('HF_TOKEN')" in said
    told = outrider.json("config", "check", "outrider.toml")
    assert outrider.status == 0
    settings = told["pools"]["train"]["settings"]
    assert (settings["nodes"]["min"], settings["nodes"]["max"], settings["lease_s"]) == (2, 8, 120.0)
    assert settings["image"]["env"]["API_KEY"] == "****"
    assert "hush-hush" not in said + json.dumps(told)


def test_everything_that_is_wrong_is_said_at_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(GOOD + BAD)
    assert guarded(lambda: app(["config", "check"])) == 2
    told = capsys.readouterr()
    assert "[pools.train] is in order" in told.out
    lines = told.err.splitlines()
    assert len(lines) == 5
    assert all(line.startswith(f"outrider: {file} [pools.bad]: ") for line in lines)
    for problem in (
        "NOT_THERE is not set, and a secret is to come from it",
        "'nods': did you mean 'nodes'?",
        "lease must be more than 0",
        "max_restarts takes a whole number",
        "there is no file",
    ):
        assert sum(problem in line for line in lines) == 1, problem


@pytest.mark.parametrize(
    ("pool", "problem"),
    [
        ('provider = "awss"', "Did you mean 'aws'?"),
        ('provider = { name = "aws", regon = "x" }', "did you mean 'region'?"),
        ('provider = { name = "ssh", hosts = ["a"], key = "/nowhere/id" }', "/nowhere/id"),
        ('specs = [{ provider = "local" }]\nvcpus = 3', "specs"),
        ('nodes = { min = 0, max = 2, scale = "load" }\nkeep = "out"', "keep"),
        ('plugins = ["torhc"]', "torch"),
        ("ranks_per_node = 0", "ranks_per_node takes"),
    ],
)
def test_one_mistake_is_one_problem(file: Path, pool: str, problem: str) -> None:
    file.write_text(f"[pools.p]\n{pool}\n")
    (said,) = checked_pool(read(file), "p").problems
    assert problem in said


def test_a_tracker_that_no_pool_names_is_checked_too(
    file: Path, outrider: Outrider, capsys: pytest.CaptureFixture[str]
) -> None:
    named = '[trackers.mlflow]\nurl = "http://mlflow:5000"\nexperimnt = "digits"\n'
    secret = '[trackers.ci]\nkind = "webhook"\nurl = "https://ci.example"\nsecret = { secret = "NOT_THERE" }\n'
    file.write_text(named + secret + '[trackers.plain]\nkind = "jsonl"\nfolder = "runs"\n')
    assert guarded(lambda: app(["config", "check"])) == 2
    told = capsys.readouterr()
    assert f"{file} [trackers.plain] is in order" in told.out
    misspelt, missing = told.err.splitlines()
    assert misspelt.startswith(f"outrider: {file} [trackers.mlflow]: ")
    assert "did you mean 'experiment'?" in misspelt
    assert missing == f"outrider: {file} [trackers.ci]: NOT_THERE is not set, and a secret is to come from it"
    problems = outrider.json("config", "check")["trackers"]
    assert outrider.status == 2
    assert {name: len(each["problems"]) for name, each in problems.items()} == {"mlflow": 1, "ci": 1, "plain": 0}


def test_a_missing_secret_hides_no_other_problem_and_is_no_setting(file: Path) -> None:
    file.write_text('[pools.p]\nimage = { env = { A = { secret = "NOT_THERE" } } }\n')
    checked = checked_pool(read(file), "p")
    assert checked.problems == ("NOT_THERE is not set, and a secret is to come from it",)
    assert checked.settings == {}


@pytest.mark.parametrize(
    ("content", "said"),
    [("[pools", "is not valid TOML"), ("[pool.a]", "write [pools.a]"), (None, "cannot be read")],
)
def test_a_file_that_cannot_be_read_is_one_line(
    file: Path, content: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        file.write_text(content)
    assert guarded(lambda: app(["config", "check", str(file)])) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert told.err.count("\n") == 1


def test_no_file_at_all_is_an_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(lambda: app(["config", "check"])) == 2
    assert "there is no outrider.toml" in capsys.readouterr().err


def test_the_projects_file_counts_as_well(file: Path, outrider: Outrider) -> None:
    (file.parent / "pyproject.toml").write_text("[tool.outrider.pools.default]\nnodes = 2\n")
    assert outrider("config", "check") == 0
    assert "[tool.outrider.pools.default] is in order\n  nodes = " in outrider.said()
