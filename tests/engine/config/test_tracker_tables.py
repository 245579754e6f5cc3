"""Trackers in `outrider.toml`: by their kind, by the name of a table, and with secrets of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import Pool, errors, trackers
from outrider.engine.config.files import read
from outrider.engine.scripts.run import Program, planned


def written(folder: Path, text: str) -> Path:
    file = folder / "outrider.toml"
    file.write_text(text)
    return file


FILE = """
[trackers.hook]
kind = "webhook"
url = "https://ci.example/hook"
secret = { secret = "HOOK_KEY" }

[trackers.mlflow]
url = "http://mlflow:5000"
experiment = "digits"

[pools.train]
trackers = ["mlflow", "hook", { kind = "mlflow", name = "other", url = "http://other:5000", ranks = "all" }]

[pools.plain]
"""


def test_names_mean_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", "shh-shh")
    pool = Pool.from_config("train", file=written(tmp_path, FILE))
    first, hook, other = pool._settings.trackers
    assert first == trackers.MLflow("http://mlflow:5000", experiment="digits")
    assert isinstance(hook, trackers.Webhook)
    assert (hook.name, hook.host) == ("hook", "ci.example")
    assert other == trackers.MLflow("http://other:5000", name="other", ranks="all")


def test_outrider_run_knows_them_by_track(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_KEY", "shh-shh")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://env:5000")
    (tmp_path / "train.py").write_text("")
    program = Program((str(tmp_path / "train.py"),), is_script=True, folder=tmp_path)
    (alone,) = planned(program, {"trackers": ["mlflow"]}).pool._settings.trackers
    assert alone == trackers.MLflow("http://env:5000")
    written(tmp_path, FILE)
    first, hook = planned(program, {"trackers": ["mlflow", "hook"]}, pool="plain").pool._settings.trackers
    assert first == trackers.MLflow("http://mlflow:5000", experiment="digits")
    assert isinstance(hook, trackers.Webhook)


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ('"wandbee"', "a tracker's kind is one of"),
        ("{ url = 'http://h' }", "a tracker's kind is one of"),
        ('{ kind = "mlflow", ulr = "http://h" }', "no option 'ulr'|ulr"),
        ('{ kind = "mlflow", url = "h" }', "begins with http"),
        ('{ kind = "no_such_module:Mine" }', "no_such_module"),
        ('{ kind = "json:dumps", obj = 1 }', "is no trackers.Tracker"),
    ],
)
def test_what_means_nothing_is_refused(tmp_path: Path, said: str, error: str) -> None:
    file = written(tmp_path, f"[pools.train]\ntrackers = [{said}]\n")
    with pytest.raises(errors.SpecError, match=error):
        Pool.from_config("train", file=file)


def test_a_file_of_trackers_alone_can_be_read(tmp_path: Path) -> None:
    assert read(written(tmp_path, '[trackers.mlflow]\nurl = "http://h"\n')).trackers == {"mlflow": {"url": "http://h"}}


def test_a_relative_folder_is_meant_from_the_files_folder_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[trackers.lines]\nkind = "jsonl"\nfolder = "runs"\n'
    text += '[pools.p]\ntrackers = ["lines", { kind = "tensorboard", folder = "tb" }]\n'
    file = written(tmp_path, text)
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    lines, boards = Pool.from_config("p", file=file)._settings.trackers
    assert lines == trackers.JSONLines(tmp_path / "runs", name="lines")
    assert boards == trackers.TensorBoard(tmp_path / "tb")
