"""Names that were replaced do not come back: those of the tables in decision 36, as whole words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "decisions" / "0036-rooms-of-the-engine.md"

# Old names that are words of other things as well: of English, of Python, or of another module.
OF_OTHER_THINGS = """
    base board box choice claim clean core definitions ec2 executor hand home leaving places ports post reach
    refusal remote rules runtime shield sides silence site source spec task terms testing translate views wanted
    Asked At Blow Calls Ending Front Host Left Place Printed Refused Runtime Seen Snapshot Template Turn Where
    Wish World alike calls ending front hits inventory kinds pace seen turn where wishes words world
    agreement loading reading run saving writing Found Loading Reader
    leftovers launch scheduling LOOK_S Watch on_preemption console descriptions writer
    advice agent explained frames inbox mounts patterns phase plan prepare root shell target_of uv
    Exit Shell
    bucket inherited launching objects owners polling shared whose
    Embedding beside bundle http pickling pools retries scheduler streams supervisor work Scheduler Work
    takeover connector connectivity decisions entry files fleet gang lifecycle losses restore roster watch
    Board CLAIM Choice Claim Fact Fleet Given Home Late Lifecycle Places Port Post Site State Trouble
"""
# Old names that are to go. Take one out of here when it is gone: then it stays away.
NOT_GONE_YET = """
    door meter Meter
"""


def old_names() -> set[str]:
    """The names in the first column of each table; of a path the last part, of an attribute all of it."""
    rows = [row.split("|")[1] for row in PAGE.read_text().splitlines() if row.startswith("| ") and "`" in row]
    names = {name.rstrip("/").rpartition("/")[2] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    return names - {*OF_OTHER_THINGS.split(), *NOT_GONE_YET.split()}


def text_of_the_tree() -> dict[str, str]:
    files = (path for top in ("src", "tests", "docs") for path in (ROOT / top).rglob("*"))
    chosen = (path for path in files if path.suffix in {".py", ".md"} and path not in {PAGE, Path(__file__)})
    return {str(path.relative_to(ROOT)): path.read_text() for path in chosen}


def test_replaced_names_do_not_come_back() -> None:
    names = old_names()
    word = re.compile(rf"(?<![A-Za-z0-9])_*({'|'.join(map(re.escape, sorted(names)))})(?!\w)")
    found = {
        f"{path}:{number}: {match[1]}"
        for path, text in text_of_the_tree().items()
        if word.search(text)
        for number, line in enumerate(text.splitlines(), 1)
        if (match := word.search(line))
    }
    assert len(names) > 40
    assert found == set(), "see the new names in docs/decisions/0036-rooms-of-the-engine.md"


@pytest.mark.parametrize("excepted", [OF_OTHER_THINGS, NOT_GONE_YET], ids=["of other things", "not gone yet"])
def test_every_exception_is_a_name_of_the_tables(excepted: str) -> None:
    assert {*excepted.split()} <= {*re.findall(r"\w+", PAGE.read_text())}
