"""Versions on both sides are compared in one table."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.node.facts import installed_packages
from outrider.engine.serialization.versions import Mismatch, compare, table, version_mismatch

HERE = {"Python": "3.11.7", "cloudpickle": "3.1.2", "numpy": "2.4.6", "torch": "2.13.0+cpu", "pandas": "3.1.1"}


def differing(there: dict[str, str], *used: str) -> dict[str, bool]:
    return {mismatch.what: mismatch.serious for mismatch in compare(HERE, there, used)}


def test_equal_versions_and_other_patches_are_fine() -> None:
    assert differing(HERE) == {}
    assert differing({**HERE, "Python": "3.11.2", "numpy": "2.4.0", "torch": "2.13.1+cu129"}) == {}


def test_what_will_not_be_understood_is_serious_and_comes_first() -> None:
    there = {**HERE, "torch": "2.12.1", "numpy": "1.26.4", "Python": "3.12.1"}
    assert differing(there) == {"Python": True, "numpy": True, "torch": False}
    assert [mismatch.serious for mismatch in compare(HERE, there)] == [True, True, False]


def test_a_package_that_nodes_lack_matters_when_it_is_used_here() -> None:
    there = {"Python": "3.11.7", "cloudpickle": "3.1.2"}
    assert differing(there) == {}
    assert differing(there, "pandas") == {"pandas": False}
    assert "Image(pip=[...])" in compare(HERE, there, ["pandas"])[0].why


def test_the_table_has_a_line_for_each() -> None:
    lines = table(compare(HERE, {**HERE, "numpy": "1.26.4", "torch": "2.12.1"})).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["numpy", "2.4.6", "1.26.4"], ["torch", "2.13.0+cpu", "2.12.1"]]
    assert lines[0].split() == ["here", "there"]
    assert lines[0].index("here") == lines[1].index("2.4.6") == lines[2].index("2.13.0+cpu")


@given(st.dictionaries(st.sampled_from(sorted(HERE)), st.text("0123456789.rc+abcpu", max_size=12)))
def test_versions_of_any_form_are_judged(there: dict[str, str]) -> None:
    found = compare(HERE, there, HERE)
    assert all(isinstance(mismatch, Mismatch) and mismatch.why for mismatch in found)
    assert table(found).count("\n") == len(found)


def test_installed_versions_are_read_from_names_where_the_first_folder_counts(tmp_path: Path) -> None:
    for folder, name in [("a", "numpy-2.4.6"), ("b", "numpy-1.0"), ("b", "Torch-2.13.0+cpu"), ("b", "numpydoc-1.8")]:
        (tmp_path / folder / f"{name}.dist-info").mkdir(parents=True)
    paths = [str(tmp_path / name) for name in ("missing", "a", "b")]
    assert installed_packages(paths) == {"numpy": "2.4.6", "torch": "2.13.0+cpu"}


def test_a_version_mismatch_shows_a_table_of_what_differs() -> None:
    error = version_mismatch(
        "another Python",
        {"python": "3.11", "cloudpickle": "3.1.2", "protocol": 1},
        {"python": "3.12", "cloudpickle": "3.1.2", "protocol": 1, "pid": 7},
    )

    assert error.versions == (("python", "3.11", "3.12"),)
    lines = str(error).splitlines()
    assert lines[0].startswith("A node refused the connection: another Python.")
    assert [line.split() for line in lines[1:]] == [["here", "there"], ["python", "3.11", "3.12"]]
