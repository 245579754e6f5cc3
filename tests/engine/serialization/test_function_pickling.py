"""Code reaches nodes by name where they can import it, else as a copy. What is said of modules that they lack."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from outrider import compute
from outrider.engine.serialization import function_pickling, program
from outrider.engine.serialization.error_notes import AttemptPlace
from outrider.engine.serialization.error_translation import failed_error
from outrider.engine.wire import importable as modules_of_nodes
from outrider.engine.wire.importable import ImportableModules, import_advice
from outrider.engine.wire.messages import Failed
from outrider.engine.wire.values import Unpicklable

HELPER = "FACTOR = 3\ndef scaled(x): return FACTOR * x\nclass Point:\n    def __init__(self, x): self.x = x\n"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module of the user's own that imports another."""
    (tmp_path / "own_helper.py").write_text(HELPER)
    (tmp_path / "own_tasks.py").write_text(
        "from outrider import compute\nimport own_helper\nfrom own_helper import Point, scaled\n"
        "@compute\ndef triple(x): return scaled(x) + own_helper.FACTOR\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("own_tasks")
    for name in ("own_tasks", "own_helper"):
        sys.modules.pop(name, None)


def elsewhere(code: str, data: bytes) -> str:
    """In an interpreter that has this environment, and not the user's folder."""
    return (
        subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
        .stdout.decode()
        .strip()
    )


def test_the_users_own_is_neither_installed_nor_included(own: ModuleType) -> None:
    modules = ImportableModules([])
    assert {"own_tasks", "own_helper"} <= set(modules.own())
    assert not {"json", "numpy", "pytest", "outrider", "__main__"} & set(modules.own())
    assert not modules.has("own_tasks")
    assert modules.has("json.decoder")
    assert modules.has("pytest")
    assert modules.has("outrider.engine.api.compute")
    assert not modules.has("never_imported")
    assert ImportableModules(["own_tasks"]).has("own_tasks")
    assert "own_tasks" not in ImportableModules(["own_tasks"]).own()


def test_own_modules_that_are_loaded_later_are_own_too(own: ModuleType, tmp_path: Path) -> None:
    modules = ImportableModules([])
    before = modules.own()
    (tmp_path / "own_later.py").write_text("")
    importlib.invalidate_caches()  # the folder may have the same time as when it was looked through
    importlib.import_module("own_later")
    try:
        assert set(modules.own()) - set(before) == {"own_later"}
    finally:
        del sys.modules["own_later"]


def test_a_function_takes_the_users_own_modules_along(own: ModuleType) -> None:
    with function_pickling.for_nodes(ImportableModules([])):
        data = function_pickling.dumps_function(own.triple)
    run = "import sys, pickle; print(pickle.load(sys.stdin.buffer)(7), 'own_helper' in sys.modules)"
    assert elsewhere(run, data) == "24 False"


def test_a_setup_takes_the_users_own_modules_along(own: ModuleType) -> None:
    function = compute(setup=partial(own.triple.function, 2))(lambda state: state)
    with function_pickling.for_nodes(ImportableModules([])):
        data = program.build(function)
    run = "import sys, pickle; print(pickle.load(sys.stdin.buffer)(lambda: ((), {})), 'own_helper' in sys.modules)"
    assert elsewhere(run, data) == f"{own.triple.local(2)} False"


def test_what_is_included_is_named(own: ModuleType) -> None:
    with function_pickling.for_nodes(ImportableModules(["own_tasks", "own_helper"])):
        assert len(function_pickling.dumps_function(own.triple)) < 150
    with function_pickling.for_nodes(None):
        assert len(function_pickling.dumps_function(own.triple)) < 150


def test_arguments_of_own_classes_travel_as_copies(own: ModuleType) -> None:
    import cloudpickle

    with function_pickling.for_nodes(ImportableModules([])):
        data = cloudpickle.dumps(own.Point(4))
    assert cloudpickle.list_registry_pickle_by_value() == set()
    assert elsewhere("import sys, pickle; print(pickle.load(sys.stdin.buffer).x)", data) == "4"
    assert type(pickle.loads(data)) is own.Point  # and come back as what they are here


def test_a_pending_call_in_an_argument_is_a_copy_too(own: ModuleType) -> None:
    import cloudpickle

    with function_pickling.for_nodes(ImportableModules([])):
        data = cloudpickle.dumps(own.triple)
    assert elsewhere("import sys, pickle; print(pickle.load(sys.stdin.buffer).local(1))", data) == "6"


def test_advice_names_the_option_that_brings_a_module(own: ModuleType) -> None:
    assert (
        import_advice("own_helper") == "own_helper is your own code: send it along by Image(includes=['own_helper'])."
    )
    numpy = import_advice("numpy.linalg")
    assert numpy.startswith("numpy is installed here: have it installed there by Image(pip=['numpy==")
    assert import_advice("no_such_module_anywhere.part").startswith("no_such_module_anywhere is not here either.")
    assert import_advice("json") == ""


def test_advice_names_the_distribution_of_an_editable_install(
    own: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    info = site / "my_project-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-project\nVersion: 1.0\n")
    (info / "direct_url.json").write_text(json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(site)
    assert import_advice("own_helper.part") == (
        "own_helper is installed here in editable mode, from the distribution my-project: "
        "send it along by Image(includes=['own_helper'])."
    )


def test_installed_and_importable_are_what_another_interpreter_finds() -> None:
    assert modules_of_nodes.importable("outrider.engine.serialization.function_pickling")
    assert not modules_of_nodes._is_installed(__name__)


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_an_environment_laid_upon_another_has_that_ones_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """As `uv run --with` does, by a .pth file: they are no code of the user's, to be sent by value."""
    below = tmp_path / "below" / folder
    below.mkdir(parents=True)
    (below / f"laid_{folder[:4]}.py").write_text("")
    monkeypatch.syspath_prepend(below)
    importlib.import_module(f"laid_{folder[:4]}")
    assert modules_of_nodes._is_installed(f"laid_{folder[:4]}")
    assert f"laid_{folder[:4]}" not in ImportableModules([]).own()


def test_the_users_own_is_looked_for_once(own: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ImportableModules([])
    found = modules.own()
    monkeypatch.setattr(modules_of_nodes, "importable", lambda name: pytest.fail("looked again"))
    assert modules.own() is found


def test_a_module_that_a_node_lacks_is_advised_on_in_the_tasks_error(own: ModuleType) -> None:
    place = AttemptPlace("triple", node=2)
    missing = Failed(1, "load", "ModuleNotFoundError", "No module named 'own_helper'", "", None, 0)
    error = failed_error(missing, place, None)
    assert "Image(includes=['own_helper'])" in str(error)
    raised = missing._replace(phase="call")
    imported = failed_error(raised, place, lambda: ModuleNotFoundError("No module named 'own_helper'"))
    assert isinstance(imported, ModuleNotFoundError)
    assert "own_helper is your own code: send it along by Image(includes=['own_helper'])." in imported.__notes__


# --- by name or as a copy -------------------------------------------------------------------------------------------


def test_only_what_another_interpreter_would_find_is_importable(importable: ModuleType) -> None:
    assert modules_of_nodes.importable(importable.__name__)
    assert modules_of_nodes.importable("json.decoder")
    assert modules_of_nodes.importable("sys")
    assert not modules_of_nodes.importable("__main__")
    assert not modules_of_nodes.importable("never_imported")
    assert not modules_of_nodes.importable(made_by_hand().__name__)


def test_a_module_that_shadows_another_is_not_importable(importable: ModuleType, tmp_path: Path) -> None:
    loaded_from_elsewhere = ModuleType("json.tool")
    loaded_from_elsewhere.__file__ = str(tmp_path / "tool.py")
    before = sys.modules.get("json.tool")
    sys.modules["json.tool"] = loaded_from_elsewhere
    try:
        assert not modules_of_nodes.importable("json.tool")
    finally:
        del sys.modules["json.tool"]
        if before is not None:
            sys.modules["json.tool"] = before


def made_by_hand() -> ModuleType:
    module = ModuleType("made_by_hand")
    sys.modules[module.__name__] = module
    exec(
        "from outrider import compute\n"
        "FACTOR = 3\n"
        "def helper(x): return FACTOR * x\n"
        "@compute\n"
        "def triple(x): return helper(x)\n",
        module.__dict__,
    )
    return module


def loaded_elsewhere(data: bytes, path: str = "") -> str:
    """What another interpreter makes of it."""
    code = (
        "import sys, pickle; sys.path.insert(0, sys.argv[1])\n"
        "print(pickle.load(sys.stdin.buffer)(7), 'importable_functions' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], input=data, capture_output=True, check=True)
    return done.stdout.decode().strip()


def test_importable_functions_travel_as_their_name(importable: ModuleType) -> None:
    data = function_pickling.dumps_function(importable.double)

    assert len(data) < 150
    assert loaded_elsewhere(data, str(Path(importable.__file__ or "").parent)) == "14 True"
    assert pickle.loads(function_pickling.dumps_function(importable.Shop.price)) is importable.Shop.price.function


def test_a_copy_with_other_options_still_travels_as_its_name(importable: ModuleType) -> None:
    assert len(function_pickling.dumps_function(importable.double.with_(timeout=3))) < 150


def test_a_function_of_a_module_that_nodes_cannot_import_takes_its_helpers_along() -> None:
    module = made_by_hand()
    try:
        assert loaded_elsewhere(function_pickling.dumps_function(module.triple)) == "21 False"
        assert cloudpickle.list_registry_pickle_by_value() == set()
    finally:
        del sys.modules["made_by_hand"]


def test_what_a_function_holds_and_cannot_be_pickled_is_named() -> None:
    items = (number for number in range(3))

    @compute
    def first() -> int:
        return next(items)

    with pytest.raises(Unpicklable, match=r"first \(its variable 'items'\)"):
        function_pickling.dumps_function(first)


# --- modules that are being imported ----------------------------------------------------------------------------------

WHILE_IMPORTED = """
import pickle, sys
import outrider.engine.serialization.function_pickling as function_pickling
import outrider.engine.wire.importable as modules_of_nodes
from outrider import compute

class Thing:
    pass

@compute
def name(thing):
    return type(thing).__name__

importable = [modules_of_nodes.importable(each) for each in (__name__, __package__, "json")]
names = modules_of_nodes.being_imported()
code = function_pickling.dumps_function(name)
by_name = b"_function_of" in code
"""


@pytest.mark.parametrize("is_installed", [False, True])
def test_functions_of_a_module_that_is_being_imported_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_installed: bool
) -> None:
    folder = tmp_path / "site-packages" if is_installed else tmp_path
    (folder / "opening").mkdir(parents=True)
    (folder / "opening" / "__init__.py").write_text("from . import inner")
    (folder / "opening" / "inner.py").write_text(WHILE_IMPORTED)
    monkeypatch.syspath_prepend(folder)
    try:
        inner = importlib.import_module("opening.inner")
        assert inner.importable == [is_installed, is_installed, True]
        assert set(inner.names) == (set() if is_installed else {"opening", "opening.inner"})
        assert inner.by_name == is_installed
        assert modules_of_nodes.importable("opening.inner"), "now it is imported"
        assert modules_of_nodes.being_imported() == ()
    finally:
        for name in ("opening", "opening.inner"):
            sys.modules.pop(name, None)
