"""docs/command-line.md has every verb, with the first line and the example of its help."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

import pytest

from outrider.engine.cli.main import VERBS

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
ROW = re.compile(r"^\| `([a-z ]+)` \| (?:\[(.+?)\]\(\S+\)|(.+?)) \| `(.+?)` \|$", re.MULTILINE)
ROWS = {row[1]: (row[2] or row[3], row[4]) for row in ROW.finditer(PAGE)}


def test_the_page_has_the_verbs_that_there_are() -> None:
    assert [*ROWS] == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_says_what_help_says(verb: str) -> None:
    module, function = VERBS[verb]
    told = inspect.getdoc(getattr(importlib.import_module(f"outrider.engine.cli.{module}"), function)) or ""
    summary, example = ROWS[verb]
    assert told.partition("\n\n")[0].replace("\n", " ") == summary
    assert f"Example: `{example}`" in told.replace("\n", " ")
    assert example.startswith(f"outrider {verb}")
