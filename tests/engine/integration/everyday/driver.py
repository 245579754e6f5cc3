"""Runs the rows as tasks of one pool, and in this process, and reports what differs.

A file of rows is run as a script, by its cells as a notebook, or imported as a module.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import linecache
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

MISSING = object()
EVERYWHERE = ("script", "script as remote", "notebook", "module", "module as remote")
VERBS = "run", "broadcast", "map", "stream"


@dataclass
class Row:
    function: Callable[[int], Any]
    value: Any = MISSING  # what a call with 3 gives, of a function that starts processes: it runs by `run` alone, and
    # not in this process, which a thread of the pool shares: a fork of it may stand still
    where: tuple[str, ...] = ()  # the modes in which a limit is one


ROWS: dict[str, Row] = {}


def row(function: Any = None, **options: Any) -> Any:
    """Register a function of one number: its calls give on nodes what they give here."""
    if function is None:
        return lambda function: row(function, **options)
    ROWS[function.__name__] = Row(function, **options)
    return function


def limit(code: str, instead: str, where: tuple[str, ...] = EVERYWHERE) -> Any:
    """Register a function whose calls give something else on nodes.

    Args:
        code: What the function has, in a line of docs/guides/what-travels.md.
        instead: What happens, and what to write instead, in the same line.
        where: The modes in which that is so.
    """
    return lambda function: row(function, where=where)


# --- what a call gives -----------------------------------------------------------------------------------


@dataclass
class Raised:
    error: BaseException


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except BaseException as error:  # noqa: BLE001 - whatever a row raises
        return Raised(error)


def here(function: Callable[[int], Any], n: int) -> Any:
    value = function(n)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def same(expected: Any, value: Any) -> bool:  # noqa: PLR0911 - one for each kind
    if isinstance(expected, Raised):
        if not isinstance(value, Raised):
            return False
        if type(value.error).__name__ == "BroadcastFailed":  # each rank's; the first has the notes
            return all(same_error(expected.error, error, notes=[]) for error in value.error.exceptions)
        return same_error(expected.error, value.error, notes=getattr(expected.error, "__notes__", []))
    if type(expected) is not type(value):
        return False
    if isinstance(expected, list | tuple):
        return len(expected) == len(value) and all(map(same, expected, value))
    if type(expected) in (dict, OrderedDict):
        return list(map(type, expected)) == list(map(type, value)) and all(
            key in value and same(item, value[key]) for key, item in expected.items()
        )
    for library in {kind.__module__.partition(".")[0] for kind in type(expected).__mro__} & _SAME.keys():
        if (found := _SAME[library](expected, value)) is not None:
            return found
    return bool(expected == value)


def same_error(expected: BaseException, error: BaseException, notes: Sequence[str] = ()) -> bool:
    if type(expected) is not type(error):
        return False
    if isinstance(expected, BaseExceptionGroup):
        return expected.message == error.message and all(map(same_error, expected.exceptions, error.exceptions))
    attributes = {name: value for name, value in vars(expected).items() if name != "__notes__"}
    return (
        same(expected.args, error.args)
        and str(expected) == str(error)
        and all(hasattr(error, name) and same(value, getattr(error, name)) for name, value in attributes.items())
        and getattr(error, "__notes__", [])[: len(notes)] == [*notes]
    )


def _same_numpy(expected: Any, value: Any) -> bool | None:
    import numpy as np

    if isinstance(expected, np.ndarray):
        return expected.dtype == value.dtype and expected.shape == value.shape and bool((expected == value).all())
    return None


def _same_torch(expected: Any, value: Any) -> bool | None:
    import torch

    if isinstance(expected, torch.Tensor):
        if expected.layout is not torch.strided:
            return expected.layout == value.layout and torch.equal(expected.to_dense(), value.to_dense())
        alike = expected.dtype == value.dtype and expected.requires_grad == value.requires_grad
        return alike and torch.equal(expected, value)
    return None


def _same_pandas(expected: Any, value: Any) -> bool | None:
    return bool(expected.equals(value)) if hasattr(expected, "equals") else None


_SAME = {"numpy": _same_numpy, "torch": _same_torch, "pandas": _same_pandas}


# --- the rows on a pool ----------------------------------------------------------------------------------


def stream_of(function: Callable[[int], Any]) -> Callable[[int], Iterator[Any]]:
    def values(n: int) -> Iterator[Any]:
        value = function(n)
        if hasattr(value, "__await__"):
            import asyncio

            value = asyncio.run(value)
        yield value

    return values


def check(pool: Any, this: Row) -> dict[str, str]:
    """Return what differs from the client, by verb."""
    from outrider import compute

    is_known = this.value is not MISSING
    expected, other = (this.value, None) if is_known else (outcome(partial(here, this.function, n)) for n in (3, 4))
    call = compute(this.function)
    tries: dict[str, tuple[Callable[[], Any], Any]] = {"run": (lambda: pool.run(call(3)), expected)}
    if not is_known:
        first = next((each for each in (expected, other) if isinstance(each, Raised)), None)
        tries["broadcast"] = lambda: pool.broadcast(call(3)), first or [expected] * 2
        tries["map"] = lambda: list(pool.map(this.function, [3, 4])), first or [expected, other]
        tries["stream"] = lambda: list(pool.stream(compute(stream_of(this.function))(3))), first or [expected]
    return {verb: text for verb, (make, wanted) in tries.items() if (text := difference(wanted, outcome(make)))}


def difference(expected: Any, found: Any) -> str:
    try:
        return "" if same(expected, found) else f"expected {described(expected)}, got {described(found)}"
    except Exception as error:  # noqa: BLE001 - a comparison that fails is a difference
        return f"comparing raised {error!r}: expected {described(expected)}, got {described(found)}"


def described(value: Any) -> str:
    if not isinstance(value, Raised):
        return f"{value!r:.300}"
    error = value.error
    cause = error.__cause__
    text = f"{type(error).__module__}.{type(error).__qualname__} {error.args!r:.500}"
    return f"{text} vars={vars(error)!r:.200}" + (f" from {cause!s:.1200}" if cause is not None else "")


def main(mode: str, provider: str, *files: str) -> None:
    """Print as JSON what differs, though it is no limit, and which limits hold after all.

    Args:
        mode: "script", "notebook" or "module".
        provider: "local" or "remote", which is `Local(as_remote=True)`.
        files: Files of rows, one after another in one pool; none: those of this script.
    """
    from outrider import Local, Pool

    warnings.simplefilter("ignore")
    differ: dict[str, dict[str, str]] = {}
    hold: list[str] = []
    count = 0
    with Pool(provider=Local(as_remote=provider == "remote"), nodes=2, console="silent", run=False) as pool:
        for load in [partial(_LOAD[mode], Path(file)) for file in files] or [int]:
            load()
            count += len(ROWS)
            for name, this in ROWS.items():
                found = check(pool, this)
                if mode + (" as remote" if provider == "remote" else "") not in this.where:
                    differ.update({name: found} if found else {})
                elif not found:
                    hold.append(name)
    print(json.dumps({"rows": count, "differ": differ, "hold": hold}))


def _as_script(path: Path) -> None:
    """Run a copy of the file in ``__main__``, under the same name as every other."""
    scope = _new_main()
    script = Path("train.py").resolve()
    script.write_text(path.read_text())
    scope["__file__"] = str(script)
    exec(compile(script.read_text(), script, "exec", dont_inherit=True), scope)


def _as_notebook(path: Path) -> None:
    """Run the cells each under a name of its own, as IPython does."""
    scope = _new_main()
    for number, cell in enumerate(path.read_text().split("# %%\n")):
        file = f"/tmp/ipykernel_1/{path.stem}-{number}.py"
        linecache.cache[file] = len(cell), None, cell.splitlines(keepends=True), file
        exec(compile(cell, file, "exec", dont_inherit=True), scope)


def _as_module(path: Path) -> None:
    ROWS.clear()
    importlib.import_module(path.stem)


def _new_main() -> dict[str, Any]:
    ROWS.clear()
    scope = vars(sys.modules["__main__"])
    for name in [name for name in scope if not name.startswith("__")]:
        del scope[name]
    scope.pop("__file__", None)
    return scope


_LOAD = {"script": _as_script, "notebook": _as_notebook, "module": _as_module}
