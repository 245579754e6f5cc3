"""Docstrings can be understood by a reader who has not seen the code: each begins with a verb or a noun."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

# First words that refer to something that the reader does not know yet.
PRONOUNS = {
    "he", "here", "it", "its", "she", "such", "that", "their", "them", "there", "these", "they", "this", "those", "we",
    "what", "which", "who", "whom", "whose", "you",
}  # fmt: skip
PREPOSITIONS = {
    "after", "as", "at", "before", "between", "by", "from", "in", "into", "of", "off", "on", "out", "over", "through",
    "to", "until", "up", "with", "within", "without",
}  # fmt: skip
CONJUNCTIONS = {
    "also", "although", "and", "because", "but", "how", "if", "nor", "or", "since", "so", "than", "when", "where",
    "whether", "while", "why",
}  # fmt: skip
# These need a noun behind them: "One node of a pool", not "One that failed".
QUANTIFIERS = {"all", "another", "any", "both", "every", "none", "one", "others", "some"}
BARE = PRONOUNS | PREPOSITIONS | CONJUNCTIONS | {"is", "are", "was", "were", "has", "have", "be", ""}


def objections(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            line = (ast.get_docstring(node) or "").partition("\n")[0]
            if line and (why := objection(line)):
                found.append(f"{path.relative_to(SRC)}:{node.body[0].lineno}: {why}: {line}")
    return found


def objection(line: str) -> str:
    """What is wrong with the first line of a docstring; empty: nothing."""
    first, second, *_ = (*re.findall(r"[\w'-]+|[.,:;()]", line.replace("`", "").lower()), "", "")
    if first in PRONOUNS | PREPOSITIONS | CONJUNCTIONS:
        return f"begins with {first!r}"
    if first in QUANTIFIERS and (second in BARE or not second[0].isalpha()):
        return f"begins with {first!r} without a noun"
    if first == "raises" and second == ":":
        return "says only what is raised"
    return ""


def files() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def test_first_lines_of_docstrings_name_their_subject() -> None:
    found = [each for path in files() for each in objections(path)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line", ["It is gone.", "What is left.", "Of its machines.", "One that failed.", "All of them."]
)
def test_bare_first_word_is_refused(line: str) -> None:
    assert objection(line)


@pytest.mark.parametrize("line", ["One machine of a pool.", "Return whether the node is lost.", "All nodes, by name."])
def test_noun_or_verb_at_the_beginning_is_accepted(line: str) -> None:
    assert not objection(line)
