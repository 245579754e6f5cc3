"""What is run, and where: from the command line, the script's header and the configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import SSH, Nodes
from outrider.engine.scripts import run as module
from outrider.engine.scripts.program import Place
from outrider.engine.scripts.run import Planned, Program, planned
from outrider.errors import SpecError

HEADER = "# /// script\n# [tool.outrider]\n{lines}\n# ///\n"
SSH_TABLE = {"provider": {"name": "ssh", "hosts": ["a.example"]}}


def plan(folder: Path, given: dict[str, Any], *, header: str = "", script: str = "train.py", **more: Any) -> Planned:
    path = folder / script
    path.parent.mkdir(exist_ok=True)
    path.write_text(HEADER.format(lines=header) if header else "")
    return planned(Program((script, "--lr", "1"), True, folder), given, **more)


def nodes(found: Planned) -> Nodes:
    return found.pool._settings.nodes


def test_options_win_over_the_header_and_that_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "outrider.toml").write_text(
        "[pools.default]\nnodes = 2\nlease = 40\nmax_restarts = 5\n[pools.big]\nnodes = 9\nlease = 50\n"
    )
    assert nodes(plan(tmp_path, {})) == Nodes(2)
    found = plan(tmp_path, {}, header="# nodes = 3")
    assert (nodes(found), found.pool._settings.lease_s, found.max_restarts) == (Nodes(3), 40, 5)
    found = plan(tmp_path, {"nodes": 4, "max_restarts": 1}, header="# nodes = 3")
    assert (nodes(found), found.pool._settings.lease_s, found.max_restarts) == (Nodes(4), 40, 1)
    assert nodes(plan(tmp_path, {}, header='# pool = "big"')) == Nodes(9)
    assert nodes(plan(tmp_path, {}, header='# pool = "none"', pool="big")) == Nodes(9)


@pytest.mark.parametrize(("given", "expected"), [({}, 30.0), ({"grace": 0}, 0.0), ({"grace": 90.5}, 90.5)])
def test_grace_is_a_time_in_seconds(given: dict[str, Any], expected: float, tmp_path: Path) -> None:
    assert plan(tmp_path, given).grace_s == expected


@pytest.mark.parametrize("grace", [-1, True, "30", 7200, float("nan")])
def test_grace_that_is_no_time_is_refused(grace: object, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="grace takes seconds, from 0 to 3,600"):
        plan(tmp_path, {"grace": grace})


def test_a_headers_dependencies_are_packages_of_the_image(tmp_path: Path) -> None:
    header = '# image = { pip = ["cloudpickle"], env = { A = "1" } }'
    path = tmp_path / "train.py"
    path.write_text(HEADER.format(lines=header).replace("# [tool", '# dependencies = ["msgpack"]\n# [tool', 1))
    image = planned(Program(("train.py",), True, tmp_path), {}).pool._settings.image
    assert (image.pip, image.env) == (("msgpack", "cloudpickle"), {"A": "1"})


@pytest.mark.parametrize(
    ("given", "header", "told"),
    [
        ({"nodse": 3}, "", "outrider run has no option 'nodse': did you mean 'nodes'?"),
        ({}, "# nodse = 3", "train.py [tool.outrider]: a script's header has no option 'nodse': did you mean 'nodes'?"),
        ({}, '# pool = "trian"', "has no pool 'trian': did you mean 'train'?"),
        ({}, "# pool = 3", "pool is the name of one in outrider.toml"),
        ({}, '# image = "numpy"', "train.py: image takes a table"),
        ({"image": {"pip": ["a"]}}, "# image = { env = 3 }", "image.env takes a mapping"),
        ({"ranks_per_node": 0}, "", 'ranks_per_node takes "auto" or a number'),
        ({"ranks_per_node": 10**400}, "", "a number from 1 to 100,000, not 1000"),
        ({"max_restarts": -1}, "", "max_restarts takes a whole number"),
        ({"nodes": [3, 1]}, '# pool = "train"', "outrider.toml [pools.train]: nodes=(3, 1)"),
    ],
)
def test_what_is_wrong_is_told(tmp_path: Path, given: dict[str, Any], header: str, told: str) -> None:
    (tmp_path / "outrider.toml").write_text("[pools.train]\nnodes = 2\n")
    with pytest.raises(SpecError) as caught:
        plan(tmp_path, given, header=header)
    assert told in str(caught.value)


def test_a_script_that_is_not_there_is_told_with_how_to_run_a_command(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"does not exist\. To run a command .*: outrider run \[OPTIONS\] -- nvidia-smi -L"
    ):
        planned(Program(("nvidia-smi", "-L"), True, tmp_path), {})


def included(found: Planned) -> list[str]:
    return [str(each) for each in found.pool._settings.image.includes]


def test_here_nothing_is_brought_anywhere(tmp_path: Path) -> None:
    found = plan(tmp_path, {})
    assert (found.place, included(found)) == (Place(str(tmp_path)), [])


def test_other_computers_get_the_working_directory(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    found = plan(project, SSH_TABLE, script="src/train.py")
    assert (found.place, included(found)) == (Place(str(project), "project"), [str(project)])
    assert found._inside("src/train.py") == "src/train.py"


def test_or_the_scripts_folder_where_it_is_elsewhere(tmp_path: Path) -> None:
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    found = plan(project, SSH_TABLE, script="../elsewhere/train.py")
    assert (found.place, included(found)) == (Place(str(elsewhere), "elsewhere"), [str(elsewhere)])
    assert found._inside("../elsewhere/train.py") == "train.py"


def test_or_the_script_alone_where_its_folder_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_no_projects", lambda: {tmp_path})
    found = plan(tmp_path, SSH_TABLE)
    assert (found.place, included(found)) == (Place(str(tmp_path), ""), [str(tmp_path / "train.py")])
    assert found._inside("train.py") == "train.py"
    command = planned(Program(("nvidia-smi",), False, tmp_path), SSH_TABLE)
    assert (command.place, included(command)) == (Place(""), [])


def test_a_pools_own_plugins_and_provider_stay(tmp_path: Path) -> None:
    found = plan(tmp_path, {**SSH_TABLE, "plugins": ["huggingface"]})
    assert [plugin.name for plugin in found.pool._settings.plugins] == ["huggingface", "script"]
    assert isinstance(found.pool._settings.provider, SSH)


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("")
    real = Path.open

    def refuse(path: Path, *given: Any, **options: Any) -> Any:  # root may read everything
        if path.name == "train.py":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *given, **options)

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SpecError, match=r"the script .*train\.py cannot be read: Permission denied\."):
        planned(Program(("train.py",), True, tmp_path), {})
