"""`outrider --help` says what each command does, and only the verb that is used is imported."""

from __future__ import annotations

import importlib
import inspect
import io
import re
import subprocess
import sys

import pytest

from outrider.engine.cli.main import VERBS, main


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_is_explained(
    verb: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    *group, last = verb.split()
    monkeypatch.setattr(sys, "argv", ["outrider", *group, "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    module, name = VERBS[verb]
    place = module if "." in module else f"outrider.engine.cli.{module}"
    function = getattr(importlib.import_module(place), name)
    summary = re.escape((inspect.getdoc(function) or "?").partition("\n")[0])
    assert re.search(rf"\b{last} +{summary}", capsys.readouterr().out)


def test_the_command_alone_explains_its_verbs() -> None:
    code = "import sys; sys.argv = ['outrider']; from outrider.engine.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={"COLUMNS": "200"}, check=False
    )
    assert re.search(r"\bwait +Wait for the end of a run", done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ps", "train", "x"], "outrider: nothing is known here by the name of train x\nSee `outrider ps --help`.\n"),
        (["runs", "--jsn"], "outrider: Unknown option: --jsn. Did you mean --json?\nSee `outrider runs --help`.\n"),
        (["rnus"], 'outrider: Unknown command "rnus". Did you mean "runs"?'),
        (["logs"], 'outrider: Command "logs" parameter RUN requires an argument\nSee `outrider logs --help`.\n'),
    ],
)
def test_what_is_wrong_with_a_command_line_is_said_in_two_lines(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["outrider", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith(said)
    assert told.err.count("\n") == 2


@pytest.mark.parametrize("module", ["control", "follow", "pages", "runs", "top"])
def test_verbs_that_read_records_import_nothing_of_pools_and_clouds(module: str) -> None:
    """They are started often, by scripts too, and it would take longer than all else that they do."""
    unused = "{'outrider.' + name for name in ('providers.base', 'providers.shared.journal', 'engine.cli.pool_search')}"
    code = f"import sys, outrider.engine.cli.{module}; print(sorted({unused} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_version_imports_no_verb() -> None:
    code = (
        "import sys; sys.argv = ['outrider', '--version']\n"
        "from outrider.engine.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'outrider.engine.cli.run', 'outrider.actors', 'outrider.providers.shared.journal', 'anyio'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[1:] == ["[]"]


def test_characters_that_a_terminal_cannot_show_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr(sys, "argv", ["outrider", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert sys.stdout.errors == "replace"
