"""docs/command-line.md has every verb, with the first line and the example of its help."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engine.cli.main import VERBS

PAGE = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text()
ROW = re.compile(r"^\| `([a-z ]+)` \| (?:\[(.+?)\]\(\S+\)|(.+?)) \| `(.+?)` \|$", re.MULTILINE)
ROWS = {row[1]: (row[2] or row[3], row[4]) for row in ROW.finditer(PAGE)}


def function_of(verb: str) -> Callable[..., object]:
    module, function = VERBS[verb]
    place = module if "." in module else f"outrider.engine.cli.{module}"
    return getattr(importlib.import_module(place), function)


def test_the_page_has_the_verbs_that_there_are() -> None:
    assert [*ROWS] == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_page_says_what_help_says(verb: str) -> None:
    told = inspect.getdoc(function_of(verb)) or ""
    summary, example = ROWS[verb]
    assert told.partition("\n\n")[0].replace("\n", " ") == summary
    assert f"Example: `{example}`" in told.replace("\n", " ")
    assert example.startswith(f"outrider {verb}")


def test_the_page_says_what_each_verb_prints_as_json() -> None:
    table = PAGE.partition("| verb | what it prints |")[2].partition("\n\n")[0]
    told = {verb for row in table.splitlines()[1:] for verb in re.findall(r"`([a-z ]+)`", row.split("|")[1])}
    has = {verb for verb in VERBS if "as_json" in inspect.signature(function_of(verb)).parameters}
    assert told == has
