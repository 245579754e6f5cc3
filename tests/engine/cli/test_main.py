"""`outrider --help` says what each command does."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

from outrider.engine.cli.gc import gc
from outrider.engine.cli.logs import logs
from outrider.engine.cli.main import app
from outrider.engine.cli.ps import ps
from outrider.engine.cli.run import run
from outrider.engine.cli.runs import runs
from outrider.engine.cli.sim import sim


@pytest.mark.parametrize("verb", [gc, logs, ps, run, runs, sim])
def test_each_command_is_explained(
    verb: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        app(["--help"])
    summary = re.escape((inspect.getdoc(verb) or "?").partition("\n")[0])
    assert re.search(rf"\b{verb.__name__} +{summary}", capsys.readouterr().out)
