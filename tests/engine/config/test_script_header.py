"""Headers of scripts, as PEP 723 has them."""

from __future__ import annotations

import pytest

from outrider.engine.scripts.run import ScriptHeader, header_of
from outrider.errors import SpecError

WHOLE = """#!/usr/bin/env python
# /// script
# requires-python = ">=3.11"
# dependencies = [
#     "torch",
#     "rich>=13",
# ]
#
# [tool.outrider]
# nodes = 4
# ///

import torch
"""


def test_a_header_is_read() -> None:
    assert header_of(WHOLE, "train.py") == ScriptHeader(("torch", "rich>=13"), ">=3.11", {"nodes": 4})
    assert header_of("import torch\n", "train.py") == ScriptHeader()
    assert header_of(WHOLE.replace("/// script", "/// other"), "train.py") == ScriptHeader()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (WHOLE + WHOLE, "2 blocks"),
        (WHOLE.replace("nodes = 4", "nodes = "), "not valid TOML"),
        (WHOLE.replace('"torch"', "1"), "dependencies is a list of requirements"),
        (WHOLE.replace("[tool.outrider]\n# nodes = 4", "tool.outrider = 3"), "[tool.outrider] a table"),
    ],
)
def test_what_is_wrong_is_told(text: str, told: str) -> None:
    with pytest.raises(SpecError) as caught:
        header_of(text, "train.py")
    assert told in str(caught.value)
    assert str(caught.value).startswith("train.py")


def test_the_python_that_it_asks_for_must_be_this_one() -> None:
    ScriptHeader().check_python("train.py")
    ScriptHeader(requires_python=">=3.11").check_python("train.py")
    with pytest.raises(SpecError, match=r"train.py asks for Python >=3.99, and this is"):
        ScriptHeader(requires_python=">=3.99").check_python("train.py")
    with pytest.raises(SpecError, match="no version specifier"):
        ScriptHeader(requires_python="new").check_python("train.py")
