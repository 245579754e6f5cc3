"""Clouds are small, and what two of them have alike is in the layer of all clouds: no run of lines stands in two. Each
has a page, on which a new user finds the same headings.
"""

from __future__ import annotations

import ast
import io
import keyword
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.providers.registry import PROVIDERS as REGISTERED

PROVIDERS = Path(__file__).parents[2] / "src" / "providers"
CLOUDS = [folder for folder in sorted(PROVIDERS.iterdir()) if (folder / "cloud.py").exists()]
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
LINES = 16  # alike in two clouds are too many
MOST = 870  # lines of a cloud, without docstrings
LARGE = {"aws": 2450, "gcp": 1040}  # decision 76 says of what, and counts docstrings as well
KINDS = 4  # of lines in a run; those of a table are all of one kind, and tables are not alike for that
PAGES = PROVIDERS.parents[1] / "docs" / "providers"
HEADINGS = ("Set up in five minutes", "notices", "What ends a (machine|pod|container)", "Permissions", "Cost", "quotas")


def shape(line: str) -> str:
    """A line without what makes it one cloud's: names become ``N``, texts ``S``, and numbers ``0``."""
    told: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(line.strip()).readline):
            match token.type:
                case tokenize.NAME:
                    told.append(token.string if keyword.iskeyword(token.string) else "N")
                case tokenize.STRING:
                    told.append("S")
                case tokenize.NUMBER:
                    told.append("0")
                case tokenize.OP:
                    told.append(token.string)
    except (tokenize.TokenError, IndentationError, SyntaxError):  # a part of a text over several lines
        return line.strip()
    return " ".join(told)


def lines_of(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The file and the shapes of its lines, but for imports, comments and lone brackets. Tests' clouds do not count."""
    for file in sorted(folder.rglob("*.py")):
        if "testing" not in file.parts:
            lines = [each.strip() for each in file.read_text().splitlines()]
            kept = [each for each in lines if not each.startswith(("#", "import ", "from "))]
            yield file.name, [shape(each) for each in kept if any(c.isalnum() for c in each)]


def alike(clouds: dict[str, list[tuple[str, list[str]]]]) -> list[set[tuple[str, str]]]:
    """The runs of `LINES` lines that stand in two clouds: the cloud and the file of each."""
    where: dict[tuple[str, ...], set[tuple[str, str]]] = defaultdict(set)
    for cloud, files in clouds.items():
        for name, lines in files:
            for start in range(len(lines) - LINES + 1):
                run = tuple(lines[start : start + LINES])
                if len({*run}) >= KINDS:
                    where[run].add((cloud, name))
    return [found for found in where.values() if len({cloud for cloud, _ in found}) > 1]


def test_no_sixteen_lines_stand_in_two_clouds() -> None:
    assert {"aws", "gcp", "lambda_labs", "containers"} <= {folder.name for folder in CLOUDS}
    assert alike({folder.name: list(lines_of(folder)) for folder in CLOUDS}) == []


def lines_without_docstrings(file: Path) -> int:
    """The lines of a file; an option more is a line more of its docstring, and makes a cloud no larger."""
    text = file.read_text()
    bodies = (node.body for node in ast.walk(ast.parse(text)) if isinstance(node, Documented) and node.body)
    docstrings = (
        body[0] for body in bodies if isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    )
    return len(text.splitlines()) - sum((each.end_lineno or 0) - each.lineno + 1 for each in docstrings)


def test_a_cloud_is_small() -> None:
    counts = {
        folder.name: sum(lines_without_docstrings(each) for each in folder.rglob("*.py") if "testing" not in each.parts)
        for folder in CLOUDS
    }
    assert {name: count for name, count in counts.items() if count > LARGE.get(name, MOST)} == {}


def test_lines_with_other_names_are_alike() -> None:
    text = (PROVIDERS / "gcp" / "cloud.py").read_text()
    other = text.replace("GCP", "Sky").replace('"project"', '"sky"').replace("instances", "servers")
    files = {"gcp": [("cloud.py", text)], "sky": [("cloud.py", other)]}
    shapes = {
        name: [(file, [shape(each) for each in text.splitlines()]) for file, text in told]
        for name, told in files.items()
    }
    assert alike(shapes)


@pytest.mark.parametrize("name", ["containers", *(name for name, each in REGISTERED.items() if each.rents)])
def test_the_page_of_a_cloud_has_what_a_new_user_looks_for(name: str) -> None:
    headings = "\n".join(re.findall(r"^## .*$", (PAGES / f"{name}.md").read_text(), re.MULTILINE))
    assert [each for each in HEADINGS if not re.search(each, headings, re.IGNORECASE)] == []
