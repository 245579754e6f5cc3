"""What the pickle of a function depends on, and whether that has changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from outrider.engine.wire import pickler
from outrider.engine.wire.copies import Watch, names_of

SCRIPT = """
import os, logging
rate, config, items = 1, {"lr": 1}, [1]
log = logging.getLogger("x")
class Crate:
    size = 1
    def value(self): return 1
class Counted:
    seen = []
def helper(): return rate
def deep(): return helper()
def boxed(): return Crate().value()
def counted(): return Counted.seen
def configured(): return config["lr"]
def default(x, n=rate): return n
def path(): return os.path.sep, log
def missing(): return later()
def closed():
    count = 1
    def inner(): return count
    def change():
        nonlocal count
        count = 2
    inner.change = change
    return inner
inner = closed()
def closing(): return inner()
"""


@pytest.fixture
def script() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(SCRIPT, names)
    return names


def watched(function: object) -> Watch:
    watch = Watch()
    pickler.dumps(function, code=True, watch=watch)
    return watch


@pytest.mark.parametrize(
    ("function", "change"),
    [
        ("deep", "rate = 2"),
        ("deep", "def helper(): return 2"),
        ("deep", "helper.__code__ = (lambda: 2).__code__"),
        ("boxed", "class Crate: pass"),
        ("boxed", "Crate.value = lambda self: 2"),
        ("boxed", "Crate.later = 2"),
        ("boxed", "del Crate.size"),
        ("default", "default.__defaults__ = (2,)"),
        ("missing", "def later(): pass"),
        ("closing", "inner.change()"),
        ("path", "os = None"),
        ("deep", "del rate"),
    ],
)
def test_a_change_is_seen(script: dict[str, Any], function: str, change: str) -> None:
    watch = watched(script[function])
    assert watch.is_unchanged()
    exec(change, script)
    assert not watch.is_unchanged()


@pytest.mark.parametrize(
    ("function", "may_change"),
    [
        ("deep", False),
        ("boxed", False),
        ("counted", True),
        ("configured", True),
        ("default", False),
        ("path", False),
        ("missing", False),
        ("closing", False),
    ],
)
def test_what_may_change_in_place_is_known(script: dict[str, Any], function: str, may_change: bool) -> None:
    assert watched(script[function]).may_change is may_change


def test_names_of_inner_functions_count() -> None:
    def outer() -> Callable[[], int]:
        return lambda: len(repr([each for each in sorted([])]))  # noqa: C416 - code inside code

    assert {"len", "repr", "sorted"} <= set(names_of(outer.__code__))
