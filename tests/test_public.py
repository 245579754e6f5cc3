"""`import outrider` is quick and light, and every public name is there for people and for type checkers."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import pytest

import outrider
from outrider.engine.client.mapping import ErrorsOption, MapOptions, OutcomesMapOptions

ERRORS = "outrider.engine.api.errors"  # all its classes are told to type checkers by a star
HEAVY = {
    "anyio",
    "asyncio",
    "asyncssh",
    "cloudpickle",
    "httpx",
    "msgpack",
    "numpy",
    "pandas",
    "rich",
    "structlog",
    "torch",
}


def fresh(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.strip()


def test_importing_is_quick() -> None:
    """50 ms of a processor and not the promised 150: it takes 3, and a shared machine must not make this fail."""
    code = "import time; began = time.process_time(); import outrider; print(time.process_time() - began)"
    assert min(float(fresh(code)) for _ in range(3)) < 0.05


def test_importing_imports_nothing_heavy() -> None:
    assert fresh(f"import sys, outrider; print(sorted({HEAVY!r} & set(sys.modules)))") == "[]"


def test_decorating_functions_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom outrider import compute, gather, Nodes, Image, accelerators, errors, integrations, silent\n"
        "f = compute(timeout=3)(lambda x: x)\ngather(f(1), f(2))\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    assert fresh(code) == "[]"


def test_every_public_name_is_there_and_told_to_type_checkers() -> None:
    tree = ast.parse(Path(outrider.__file__).read_text())
    told = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for line in node.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }
    told |= {name for name, each in vars(outrider.errors).items() if getattr(each, "__module__", "") == ERRORS}

    assert len(outrider.__all__) == len(set(outrider.__all__))
    assert {name for name in told if name[0] not in "_*"} == set(outrider.__all__)
    for name in outrider.__all__:
        assert getattr(outrider, name) is not None
    assert set(outrider.__all__) <= set(dir(outrider))


def test_names_are_looked_up_once() -> None:
    vars(outrider).pop("shard", None)
    assert outrider.shard is vars(outrider)["shard"]


def test_compute_pool_is_pool_and_unknown_names_are_attribute_errors() -> None:
    assert outrider.ComputePool is outrider.Pool
    assert not hasattr(outrider, "preempted")
    with pytest.raises(AttributeError, match=r"no attribute 'function': did you mean outrider\.compute\?"):
        outrider.function  # noqa: B018
    with pytest.raises(AttributeError, match=r"did you mean outrider\.Local\?"):
        outrider.Locale  # noqa: B018
    assert outrider.__version__.count(".") == 2


def test_errors_are_a_module_too() -> None:
    """One module under two names, so that `except` means the same by both."""
    code = (
        "from outrider.errors import NodeLost\n"
        "import outrider, outrider.errors, outrider.engine.api.errors as own\n"
        "print(outrider.NodeLost is NodeLost is own.NodeLost, outrider.errors is own)"
    )
    assert fresh(code) == "True True"
    assert fresh("import outrider.errors as e, outrider; print(e is outrider.errors)") == "True"


VERBS = sorted(
    name for name in vars(outrider.SyncPool) if not name.startswith("_") and name not in {"open", "close", "unusable"}
)


@pytest.mark.parametrize("verb", VERBS)
def test_the_verbs_of_both_pools_take_the_same(verb: str) -> None:
    if isinstance(vars(outrider.SyncPool)[verb], property):
        assert isinstance(getattr(outrider.Pool, verb), property)
        return
    mine, others = (inspect.signature(getattr(kind, verb)).parameters for kind in (outrider.SyncPool, outrider.Pool))
    assert list(mine.values()) == list(others.values())


def test_what_type_checkers_hear_of_the_options_of_a_map_is_what_it_takes() -> None:
    options = {
        name: parameter
        for name, parameter in inspect.signature(outrider.Pool.map).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    for told in (MapOptions, OutcomesMapOptions):
        assert told.__annotations__.keys() == options.keys()
    assert [get_type_hints(told)["errors"] for told in (MapOptions, OutcomesMapOptions)] == [
        Literal[each] for each in get_args(ErrorsOption)
    ]
