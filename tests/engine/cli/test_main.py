"""`outrider --help` says what each command does."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from outrider.engine.cli.gc import gc
from outrider.engine.cli.log import log
from outrider.engine.cli.logs import logs
from outrider.engine.cli.main import COMMANDS, main
from outrider.engine.cli.ps import ps
from outrider.engine.cli.report import report
from outrider.engine.cli.run import run
from outrider.engine.cli.runs import runs
from outrider.engine.cli.sim import sim
from outrider.engine.cli.stop import stop
from outrider.engine.cli.top import top
from outrider.engine.cli.wait import wait

VERBS = [gc, log, logs, ps, report, run, runs, sim, stop, top, wait]


@pytest.mark.parametrize("verb", VERBS)
def test_each_command_is_explained(
    verb: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["outrider", "--help"])
    with pytest.raises(SystemExit):
        main()
    summary = re.escape((inspect.getdoc(verb) or "?").partition("\n")[0])
    assert re.search(rf"\b{verb.__name__} +{summary}", capsys.readouterr().out)


def test_each_command_is_one_of_these() -> None:
    assert sorted(verb.__name__ for verb in VERBS) == sorted(COMMANDS)


def test_a_command_is_imported_when_it_is_called() -> None:
    program = "import sys; from outrider.engine.cli.main import main; sys.argv[1:] = ['runs', '--help']\n"
    program += "try: main()\nexcept SystemExit: print('commands:', *(each for each in ('gc', 'sim', 'runs') if"
    program += " f'outrider.engine.cli.{each}' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("commands: runs\n")
