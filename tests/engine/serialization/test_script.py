"""What workers are told of the program's own script and modules, and of their changes."""

from __future__ import annotations

import importlib
import linecache
import pickle
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outrider.engine.serialization.script import REST_BYTES, Scripts
from outrider.engine.wire.copies import Watch
from outrider.engine.wire.script_modules import MAIN, Script


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_edited.py").write_text("number = 1\n")
    yield tmp_path
    sys.modules.pop("own_edited", None)


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(MAIN)
    monkeypatch.setitem(sys.modules, MAIN, module)
    return module


def described(scripts: Scripts, watch: Watch | None = None, *, shares_files: bool = True) -> Script:
    return scripts.of_function(watch or Watch(), shares_files=shares_files)


def names_of_rest(script: Script) -> set[str]:
    return set(pickle.loads(zlib.decompress(script.rest))) if script.rest else set()


def by_text(name: str = "globals") -> Watch:
    """Return the dependencies of a function that finds names by their texts."""
    watch, names = Watch(), dict[str, Any](__name__=MAIN)
    exec(f"def function(): return {name}('x')\n", names)
    watch.function(names["function"], {}, ())
    return watch


def test_nothing_is_new_at_first(folder: Path) -> None:
    importlib.import_module("own_edited")
    scripts = Scripts()
    assert scripts.news() is None
    assert scripts.news() is None


@pytest.mark.parametrize("how", ["reload", "import"])
def test_a_module_that_is_imported_anew_is_news_once(folder: Path, how: str) -> None:
    module = importlib.import_module("own_edited")
    scripts = Scripts()
    scripts.news()
    if how == "reload":
        importlib.reload(module)
    else:
        del sys.modules["own_edited"]
        importlib.import_module("own_edited")
    assert scripts.news() == ["own_edited"]
    assert scripts.news() is None
    assert described(scripts).reloads == (("own_edited", 1),)
    assert described(scripts, shares_files=False).reloads == ()  # there modules travel as copies


def test_a_folder_that_comes_onto_the_path_is_news(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = Scripts()
    assert scripts.news() is None
    monkeypatch.syspath_prepend(tmp_path)
    assert scripts.news() == []
    assert described(scripts).path == (str(tmp_path),)


def test_a_module_that_no_import_finds_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("loaded_by_hand")
    exec("def helper(): pass\n", module.__dict__)
    monkeypatch.setitem(sys.modules, "loaded_by_hand", module)
    scripts = Scripts()
    scripts.news()
    assert "loaded_by_hand" in scripts.loaded_by_hand
    assert "json" not in scripts.loaded_by_hand


def test_names_that_no_function_mentions_go_along(main: ModuleType) -> None:
    exec("limit = 3\n_hidden = 4\nimport json\nclass Kind: pass\ndef helper(): pass\n", main.__dict__)
    assert names_of_rest(described(Scripts())) == {"Kind", "helper"}
    assert names_of_rest(described(Scripts(), by_text())) == {"limit", "Kind", "helper"}


def test_what_cannot_be_pickled_or_is_too_large_is_left_out(main: ModuleType) -> None:
    source = "items = (n for n in [])\ndef uses(): return items\nlarge = b'x' * (1 << 20)\ndef helper(): pass\n"
    exec(source, main.__dict__)
    assert names_of_rest(described(Scripts())) == {"helper"}


def test_of_too_many_names_the_smallest_go_along(main: ModuleType) -> None:
    each = 30_000
    main.__dict__.update({f"text_{number}": str(number % 10) * each for number in range(REST_BYTES // each + 5)})
    main.__dict__["small"] = 1
    names = names_of_rest(described(Scripts(), by_text()))
    assert "small" in names
    assert len(names) <= REST_BYTES // each + 1


def test_an_edited_definition_is_pickled_again(main: ModuleType) -> None:
    scripts = Scripts()
    exec("def helper(): return 1\n", main.__dict__)
    first = described(scripts).rest
    assert described(scripts).rest == first
    exec("def helper(): return 2\n", main.__dict__)
    assert described(scripts).rest != first


@pytest.mark.parametrize("name", ["globals", "eval", "exec", "vars"])
def test_code_that_finds_names_by_their_texts_needs_all(name: str) -> None:
    assert described(Scripts(), by_text(name)).needs_rest
    assert not described(Scripts()).needs_rest


@pytest.mark.parametrize("shares_files", [True, False])
def test_sources_go_to_nodes_that_lack_the_file(tmp_path: Path, shares_files: bool) -> None:
    cell, file = "<cell 3>", tmp_path / "there.py"
    file.write_text("x = 1\n")
    linecache.cache[cell] = 6, None, ["y = 2\n"], cell
    watch = Watch()
    watch.files.update(dict.fromkeys((cell, str(file))))
    try:
        texts = pickle.loads(zlib.decompress(described(Scripts(), watch, shares_files=shares_files).sources))
    finally:
        del linecache.cache[cell]
    assert texts[cell] == "y = 2\n"
    assert (str(file) in texts) is not shares_files


def test_an_edited_definition_of_a_notebook_is_news(main: ModuleType) -> None:
    scripts = Scripts()
    exec("def helper(): return 1\n", main.__dict__)
    described(scripts)
    scripts.news()
    assert scripts.news() is None
    exec("def helper(): return 2\n", main.__dict__)
    assert scripts.news() == []
    described(scripts)
    assert scripts.news() is None
