"""The modules of a program as its workers have them: names that are sent, kept, sent again, and needed later."""

from __future__ import annotations

import builtins
import importlib
import inspect
import linecache
import pickle
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.wire import copies, pickler, random_streams, script_modules
from outrider.engine.wire.script_modules import MAIN, Namespace, Script


@pytest.fixture(autouse=True)
def main_as_before() -> Iterator[None]:
    before = sys.modules[MAIN]
    yield
    sys.modules[MAIN] = before
    script_modules._namespaces.clear()
    script_modules._process.last = script_modules._local.namespace = None


def program(source: str) -> dict[str, Any]:
    """Return the names of a script that has run in this process, as its ``__main__``."""
    module = ModuleType(MAIN)
    sys.modules[MAIN] = module
    exec(source, module.__dict__)
    return module.__dict__


def worker(token: str = "program", **script: Any) -> Namespace:
    namespace = script_modules.entered(Script(token, {}, **script))
    namespace.update(Script(token, {}, **script))
    return namespace


def test_a_name_keeps_its_value_until_another_one_is_sent() -> None:
    namespace = worker()
    namespace.bind(MAIN, {"model": None, "rate": 1})
    scope = namespace.module(MAIN, {}).__dict__
    scope["model"] = "loaded"
    namespace.bind(MAIN, {"model": None, "rate": 2})
    assert (scope["model"], scope["rate"]) == ("loaded", 2)


@given(st.lists(st.tuples(st.sampled_from("fg"), st.integers(1, 3)), max_size=12))
def test_each_program_runs_with_the_names_as_they_were_sent_with_it(runs: list[tuple[str, int]]) -> None:
    namespace, programs = Namespace(), {}
    scope = namespace.module(MAIN, {}).__dict__
    for function, rate in runs:
        names = programs.setdefault((function, rate), [(MAIN, {"rate": rate})])
        namespace.apply((function, rate), names)
        assert scope["rate"] == rate


def test_functions_of_a_script_share_its_names() -> None:
    names = program(
        "count = 0\ndef add():\n    global count\n    count += 1\n    return count\ndef total(): return count\n"
    )
    add, total = pickler.dumps(names["add"], code=True), pickler.dumps(names["total"], code=True)
    worker()
    pickle.loads(add)()
    assert pickle.loads(total)() == 1
    assert names["count"] == 0


def test_a_class_is_found_under_its_name_in_the_task() -> None:
    names = program("class Outer:\n    class Inner: pass\n")
    data = pickler.dumps(names["Outer"].Inner, code=True)
    copies.known_classes.clear()
    copies.received_classes.clear()
    worker()
    arrived = pickle.loads(data)
    assert pickle.loads(pickle.dumps(arrived)) is arrived


def test_programs_of_two_scripts_do_not_mix() -> None:
    one, two = worker("one"), worker("two")
    one.bind(MAIN, {"name": 1})
    two.bind(MAIN, {"name": 2})
    script_modules.entered(Script("one", {}))
    assert sys.modules[MAIN].__dict__["name"] == 1
    script_modules.entered(Script("two", {}))
    assert sys.modules[MAIN].__dict__["name"] == 2


def rest(**names: object) -> bytes:
    return zlib.compress(pickle.dumps({name: pickle.dumps(value) for name, value in names.items()}))


def test_a_name_that_no_function_mentions_is_loaded_when_it_is_needed() -> None:
    namespace = worker(rest=rest(late=5))
    main = sys.modules[MAIN]
    assert "late" not in vars(main)
    assert main.late == 5  # type: ignore[attr-defined]
    assert "late" in vars(main)
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        namespace.later("missing")


def test_code_that_finds_names_by_their_texts_has_all_of_them() -> None:
    worker(rest=rest(late=5), needs_rest=True)
    assert vars(sys.modules[MAIN])["late"] == 5


def test_a_module_that_nodes_lack_says_how_to_send_it() -> None:
    module = worker().module("my_package.my_module", {})
    assert sys.modules["my_package.my_module"] is module
    try:
        with pytest.raises(AttributeError, match=r"Image\(includes=\['my_package'\]\)"):
            module.missing  # noqa: B018 - it raises
    finally:
        del sys.modules["my_package.my_module"], sys.modules["my_package"]


def test_the_program_itself_keeps_its_names_when_results_arrive() -> None:
    names = program("rate = 1\ndef scaled(x): return rate * x\nclass Crate:\n    size = 1\n")
    data = pickler.dumps((names["scaled"], names["Crate"]))
    names["rate"], names["Crate"].size = 2, 3
    scaled, box = pickle.loads(data)
    assert (scaled(1), box.size, names["rate"]) == (2, 3, 2)


def test_a_class_that_was_edited_in_place_arrives_edited() -> None:
    names = program("class Crate:\n    def size(self): return 1\n")
    first = pickler.dumps(names["Crate"])
    names["Crate"].size = lambda _: 2
    second = pickler.dumps(names["Crate"])
    copies.known_classes.clear()
    copies.received_classes.clear()
    worker()
    box = pickle.loads(first)()
    assert box.size() == 1
    assert pickle.loads(second)().size() == box.size() == 2


def test_functions_have_the_builtins() -> None:
    names = program("def length(x): return len(x)\n")
    data = pickler.dumps(names["length"])
    worker()
    arrived = pickle.loads(data)
    assert arrived([1]) == 1
    assert arrived.__globals__["__builtins__"] in (builtins, builtins.__dict__)


def test_a_name_that_was_needed_is_the_newest_after_an_edit() -> None:
    namespace = worker(rest=rest(late=5))
    assert sys.modules[MAIN].late == 5  # type: ignore[attr-defined]
    namespace.update(Script("program", {}, rest=rest(late=6)))
    assert sys.modules[MAIN].late == 6  # type: ignore[attr-defined]


def test_a_module_that_cannot_be_reloaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version from before is not to run without a word."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_broken.py").write_text("number = 1\n")
    importlib.import_module("own_broken")
    (tmp_path / "own_broken.py").write_text("number = 1 + (\n")  # of another length: the cache is by time and size
    namespace = Namespace()
    try:
        for _ in range(2):  # also of the next task
            with pytest.raises(SyntaxError):
                namespace.update(Script("program", {}, reloads=(("own_broken", 1),)))
    finally:
        del sys.modules["own_broken"]


def test_source_of_a_class_is_found_where_its_file_is_not() -> None:
    text = "class Crate:\n    size = 1\n"
    file = "/of-another-computer/train.py"
    names = program(text)
    data = pickler.dumps(names["Crate"])
    sources = zlib.compress(pickle.dumps({file: text}))
    namespace = worker()
    namespace.update(Script("program", {"__file__": file}, sources=sources))
    try:
        assert inspect.getsource(pickle.loads(data)) == text
    finally:
        del linecache.cache[file]


def test_modules_are_reloaded_in_an_order_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_a.py").write_text("from own_b import number\n")
    (tmp_path / "own_b.py").write_text("number = 1\n")
    importlib.import_module("own_a")
    (tmp_path / "own_a.py").write_text("from own_b import number, other_number\n")
    (tmp_path / "own_b.py").write_text("number, other_number = 1, 2\n")
    try:
        Namespace().update(Script("program", {}, reloads=(("own_a", 1), ("own_b", 1))))
        assert sys.modules["own_a"].other_number == 2
    finally:
        del sys.modules["own_a"], sys.modules["own_b"]


def test_an_edited_name_that_cannot_be_unpickled_fails_its_users_alone() -> None:
    namespace = worker(rest=rest(late=5))
    assert sys.modules[MAIN].late == 5  # type: ignore[attr-defined]
    broken = zlib.compress(pickle.dumps({"late": b"no pickle", "other": pickle.dumps(1)}))
    namespace.update(Script("program", {}, rest=broken))
    assert sys.modules[MAIN].other == 1  # type: ignore[attr-defined]
    for _ in range(2):
        with pytest.raises(AttributeError, match="late of __main__ cannot be unpickled"):
            _ = sys.modules[MAIN].late  # type: ignore[attr-defined]


def test_generator_of_a_late_name_begins_the_stream_of_the_running_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def rest_of(seed: int) -> bytes:
        return zlib.compress(pickle.dumps({"dice": pickler.dumps(random.Random(seed), code=True)}))

    monkeypatch.setattr(random_streams, "task_of", lambda: (3, 0))
    namespace = worker(rest=rest_of(1))
    first = sys.modules[MAIN].dice.random()
    assert first != random.Random(1).random()
    (generators,) = namespace.generators.values()
    random_streams.begin_task(generators, 3, 0)
    assert sys.modules[MAIN].dice.random() == first
    namespace.update(Script("program", {}, rest=rest_of(2)))
    assert [generator for generator, _ in namespace.generators["dice"]] == [sys.modules[MAIN].dice], "the newest alone"


def test_modules_that_are_reloaded_together_have_the_newest_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_c.py").write_text("from own_d import number\n")
    (tmp_path / "own_d.py").write_text("number = 1\n")
    importlib.import_module("own_c")
    (tmp_path / "own_d.py").write_text("number = 1 + 1\n")
    try:
        Namespace().update(Script("program", {}, reloads=(("own_c", 1), ("own_d", 1))))
        assert sys.modules["own_c"].number == 2
    finally:
        del sys.modules["own_c"], sys.modules["own_d"]
