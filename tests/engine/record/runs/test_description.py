"""What a run was started with is told, and no secret with it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outrider import Image, Local, Nodes, Pool, Secret, Slurm, plugins
from outrider.engine.api.secrets import Scrubber
from outrider.engine.api.settings import Settings
from outrider.engine.api.volume import Volume
from outrider.engine.record.runs import description
from outrider.engine.record.runs.description import described, program_facts, secrets_of, spec_of

TOKEN = "hf_0123456789"


def settings(**options: Any) -> Settings:
    return Pool(provider=Local(), **options)._settings


def test_the_settings_of_a_pool_are_json() -> None:
    given = settings(nodes=Nodes(4, spare=1), plugins=[plugins.torch()], max_cost=5.0, image=Image(includes=[json]))
    said = json.loads(json.dumps(spec_of(given)))
    assert said["nodes"] == {"class": "Nodes", "desired": 4, "min": 4, "max": None, "spare": 1} | {
        "scale": None,
        "idle": 600.0,
    }
    assert (said["max_cost"], said["image"]["includes"]) == (5.0, ["json"])
    assert said["plugins"][0]["class"] == "Torch"
    assert said["specs"][0]["provider"]["class"] == "Local"


def test_no_secret_is_in_it() -> None:
    env = {"HF_TOKEN": TOKEN, "WANDB_API_KEY": TOKEN, "MINE": Secret(TOKEN), "DEBUG": "1"}
    indexes = [f"https://me:{TOKEN}@example.com/simple"]
    given = settings(image=Image(env=env, pip_indexes=indexes), plugins=[plugins.huggingface(TOKEN)])
    said = spec_of(given)
    assert TOKEN not in json.dumps(said)
    assert said["image"]["env"] == {"HF_TOKEN": "****", "WANDB_API_KEY": "****", "MINE": "Secret('****')", "DEBUG": "1"}
    assert said["image"]["pip_indexes"] == ["https://****@example.com/simple"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"export HF_TOKEN={TOKEN}", "export HF_TOKEN=****"),
        (f"export A=1 API_KEY='{TOKEN} '\"{TOKEN}\"x; module load cuda", "export A=1 API_KEY=****; module load cuda"),
        (f'PASSWORD="a \\" {TOKEN}" python x.py', "PASSWORD=**** python x.py"),
        (f"export TOKEN=$(echo {TOKEN})", "export TOKEN=****"),
        (f"SECRET='a\n{TOKEN}", "SECRET=****"),
        (f"curl https://example.com/x?a=1&token={TOKEN}&b=2", "curl https://example.com/x?a=1&token=****&b=2"),
        ("module load cuda; export OMP_NUM_THREADS=4", "module load cuda; export OMP_NUM_THREADS=4"),
    ],
)
def test_values_that_lines_of_shell_give_to_secrets_are_hidden(line: str, said: str) -> None:
    found = described(Slurm(setup=[line]))
    assert found["setup"] == [said]


def test_secrets_are_found_wherever_they_are() -> None:
    volume = Volume("s3://bucket", mount="/data", credentials={"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s3"})
    given = settings(image=Image(env={"A": Secret(TOKEN)}), plugins=[plugins.huggingface("other-token")])
    found = secrets_of([given, volume])
    assert {secret.reveal() for secret in found} == {TOKEN, "other-token", "s3"}
    assert Scrubber(found)(f"login {TOKEN}") == "login ****"
    assert "s3" not in json.dumps(described(volume)).replace("s3://", "")


@pytest.mark.parametrize(
    ("value", "said"),
    [(float("nan"), "nan"), (Path("/tmp/x"), "/tmp/x"), ({1: (2, {3})}, {"1": [2, [3]]}), (print, "builtin_function")],
)
def test_every_value_becomes_json(value: object, said: object) -> None:
    found = described(value)
    json.dumps(found)
    assert found == said or value is print


def test_the_program_is_told_as_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    module, lazy = ModuleType("some_package"), ModuleType("lazy_package")
    module.__version__ = "1.2.3"  # type: ignore[attr-defined]

    def asked(name: str) -> Callable[..., object]:
        raise AssertionError(f"{name} was looked up")

    lazy.__getattr__ = asked  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "some_package", module)
    monkeypatch.setitem(sys.modules, "lazy_package", lazy)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--token", "x", "--lr", "1", "env.HF_TOKEN=x"])
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    said = json.loads(json.dumps(program_facts()))
    assert said["argv"] == ["python", "train.py", "--token", "****", "--lr", "1", "env.HF_TOKEN=****"]
    assert said["versions"]["some_package"] == "1.2.3"
    assert "outrider" in said["versions"]
    assert "json" not in said["versions"]
    assert said["seeds"]["PYTHONHASHSEED"] == "7"


def test_our_own_version_is_that_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = version("outrider")
    assert description._own_version() == installed
    monkeypatch.setattr(description, "_METADATA", re.compile("nothing is named so"))
    assert description._own_version() == installed


def test_a_seed_of_torch_is_told_where_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert "torch" not in program_facts()["seeds"]
    torch.initial_seed = lambda: 11  # type: ignore[attr-defined]
    assert program_facts()["seeds"]["torch"] == 11


def test_a_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert program_facts()["cwd"] == ""
