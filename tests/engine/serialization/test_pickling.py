"""Code reaches nodes by name where they can import it, else as a copy."""

import pickle
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

from outrider import compute
from outrider.engine.serialization import pickling
from outrider.engine.wire.values import Unpicklable


def test_only_what_another_interpreter_would_find_is_importable(importable: ModuleType) -> None:
    assert pickling.importable(importable.__name__)
    assert pickling.importable("json.decoder")
    assert pickling.importable("sys")
    assert not pickling.importable("__main__")
    assert not pickling.importable("never_imported")
    assert not pickling.importable(made_by_hand().__name__)


def test_a_module_that_shadows_another_is_not_importable(importable: ModuleType, tmp_path: Path) -> None:
    loaded_from_elsewhere = ModuleType("json.tool")
    loaded_from_elsewhere.__file__ = str(tmp_path / "tool.py")
    before = sys.modules.get("json.tool")
    sys.modules["json.tool"] = loaded_from_elsewhere
    try:
        assert not pickling.importable("json.tool")
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
    data = pickling.dumps_function(importable.double)

    assert len(data) < 150
    assert loaded_elsewhere(data, str(Path(importable.__file__ or "").parent)) == "14 True"
    assert pickle.loads(pickling.dumps_function(importable.Shop.price)) is importable.Shop.price.function


def test_a_copy_with_other_options_still_travels_as_its_name(importable: ModuleType) -> None:
    assert len(pickling.dumps_function(importable.double.with_(timeout=3))) < 150


def test_a_function_of_a_module_that_nodes_cannot_import_takes_its_helpers_along() -> None:
    module = made_by_hand()
    try:
        assert loaded_elsewhere(pickling.dumps_function(module.triple)) == "21 False"
        assert cloudpickle.list_registry_pickle_by_value() == set()
    finally:
        del sys.modules["made_by_hand"]


def test_what_a_function_holds_and_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    @compute
    def guarded() -> bool:
        return lock.locked()

    with pytest.raises(Unpicklable, match=r"guarded \(its variable 'lock'\)"):
        pickling.dumps_function(guarded)
