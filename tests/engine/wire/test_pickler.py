"""The pickler of everything that crosses: what its reducers mend, and how code travels as copies."""

from __future__ import annotations

import contextlib
import contextvars
import enum
import functools
import multiprocessing
import os
import pickle
import random
import secrets
import struct
import subprocess
import sys
import threading
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from outrider.engine.wire import pickler, values

SCRIPT = """
import functools, threading, weakref
rate = 3
lock = threading.Lock()
registry = weakref.WeakValueDictionary()

class Slotted:
    __slots__ = ("x", "__hidden")
    def __init__(self): self.x, self.__hidden = 5, 6
    def hidden(self): return self.__hidden

class Outer:
    class Inner:
        pass

def scaled(x): return rate * x

@functools.cache
def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)

@functools.singledispatch
def depth(x): return 0

@depth.register
def _(x: list): return 1 + max(map(depth, x), default=0)

def counter():
    count = 0
    def add():
        nonlocal count
        count += 1
    def total(): return count
    return add, total

def even(n): return n == 0 or odd(n - 1)
def odd(n): return n > 0 and even(n - 1)
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[ModuleType]:
    """A module that no other process can import, as ``__main__`` is one."""
    module = ModuleType("made_by_hand")
    module.__file__ = str(tmp_path / "made_by_hand.py")
    sys.modules[module.__name__] = module
    exec(compile(SCRIPT, module.__file__, "exec"), module.__dict__)
    import cloudpickle

    cloudpickle.register_pickle_by_value(module)
    yield module
    cloudpickle.unregister_pickle_by_value(module)
    del sys.modules[module.__name__]


def elsewhere(data: bytes, expression: str) -> str:
    """Evaluate an expression about the unpickled ``value`` in another process."""
    code = f"import sys, pickle; value = pickle.load(sys.stdin.buffer); print(({expression}))"
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()
    return done.stdout.decode().strip()


@pytest.mark.parametrize(
    ("name", "expression", "result"),
    [
        ("scaled", "value(2)", "6"),
        ("scaled", "value.__code__.co_filename.endswith('made_by_hand.py')", "True"),
        ("fib", "value(30), value.cache_info().misses", "(832040, 31)"),
        ("depth", "value([[], [[]]])", "3"),
        ("even", "value(10)", "True"),
        ("Slotted", "value().hidden(), hasattr(value(), '__dict__')", "(6, False)"),
        ("Outer", "value.Inner.__qualname__", "Outer.Inner"),
        ("lock", "value.acquire(), value.locked()", "(True, True)"),
        ("registry", "len(value)", "0"),
    ],
)
def test_what_a_script_defines_arrives(script: ModuleType, name: str, expression: str, result: str) -> None:
    assert elsewhere(pickler.dumps(getattr(script, name), code=True), expression) == result


def test_closures_share_their_variables(script: ModuleType) -> None:
    assert elsewhere(pickler.dumps(script.counter()), "(value[0](), value[0](), value[1]())[2]") == "2"


def test_an_object_with_slots_comes_back_as_what_it_is_here(script: ModuleType) -> None:
    again = pickle.loads(pickler.dumps(script.Slotted()))
    assert type(again) is script.Slotted
    assert (again.x, again.hidden()) == (5, 6)


def test_a_function_that_comes_back_is_the_programs_own(script: ModuleType) -> None:
    data = pickler.dumps(script.scaled)
    script.rate = 5
    again = pickle.loads(data)
    assert again is script.scaled
    assert again(1) == 5


def test_a_class_that_comes_back_keeps_its_attributes_here(script: ModuleType) -> None:
    data = pickler.dumps(script.Outer)
    script.Outer.later = 7
    assert pickle.loads(data) is script.Outer
    assert script.Outer.later == 7


class Colour(enum.Enum):
    RED = 1, "warm"
    BLUE = 2, "cold"

    def __init__(self, number: int, feeling: str) -> None:
        self.feeling = feeling


def test_members_of_an_enumeration_have_their_attributes(script: ModuleType) -> None:
    copy = type(Colour)("Colour", (enum.Enum,), _members())
    copy.__module__ = script.__name__
    assert elsewhere(pickler.dumps(copy), "value.RED.feeling, value((2, 'cold')).name") == "('warm', 'BLUE')"


def _members() -> Any:
    names = type(Colour).__prepare__("Colour", (enum.Enum,))
    names["RED"], names["BLUE"], names["__init__"] = (1, "warm"), (2, "cold"), Colour.__init__
    return names


def test_hooks_of_base_classes_do_not_run_again(script: ModuleType) -> None:
    source = (
        "class Base:\n    def __init_subclass__(cls, *, label): cls.label = label\nclass Part(Base, label='x'): pass\n"
    )
    exec(source, script.__dict__)
    assert elsewhere(pickler.dumps(script.Part), "value.label") == "x"


def test_a_metaclass_with_arguments_does_not_run_again(script: ModuleType) -> None:
    source = (
        "class Meta(type):\n    def __new__(cls, *args, colour):\n        made = super().__new__(cls, *args)\n"
        "        made.colour = colour\n        return made\n    def __init__(cls, *args, colour): pass\n"
        "class Part(metaclass=Meta, colour='red'): pass\n"
    )
    exec(source, script.__dict__)
    assert elsewhere(pickler.dumps(script.Part), "value.colour") == "red"


Number = typing.NewType("Number", int)
Number.__module__ = "__main__"
Parameters = typing.ParamSpec("Parameters")
Parameters.__module__ = "__main__"


@pytest.mark.parametrize(
    ("value", "expression", "result"),
    [
        (Number, "value(3), value.__name__", "(3, 'Number')"),
        (Parameters, "value.__name__", "Parameters"),
        (struct.Struct("<ih"), "value.size", "6"),
        (random.random, "value is __import__('random').random", "True"),
        (random.randint, "value == __import__('random').randint", "True"),
        (random.SystemRandom(), "type(value).__name__", "SystemRandom"),
        (secrets.choice, "value([3])", "3"),
        (os.environ, "value is __import__('os').environ", "True"),
        (multiprocessing.Pool, "value == __import__('multiprocessing').Pool", "True"),
        ("abc".upper, "value()", "ABC"),
    ],
    ids=["NewType", "ParamSpec", "Struct", "random", "randint", "SystemRandom", "secrets", "environ", "Pool", "upper"],
)
def test_what_belongs_to_a_module_arrives(value: object, expression: str, result: str) -> None:
    assert elsewhere(pickler.dumps(value), expression) == result


@pytest.mark.parametrize("value", [random.random, os.environ, random.randint], ids=["random", "environ", "randint"])
def test_plain_pickles_name_what_belongs_to_a_module_too(value: object) -> None:
    dumped = values.dump(((value,), {}))
    assert dumped.total < 200


def test_a_generator_of_numpys_module_is_named() -> None:
    numpy = pytest.importorskip("numpy")
    assert len(pickler.dumps(numpy.random.rand)) < 200
    assert values.dump(numpy.random.rand).total < 200


@pytest.mark.parametrize(
    ("make", "use"),
    [
        (threading.Lock, "value.acquire()"),
        (threading.RLock, "value.acquire()"),
        (threading.local, "vars(value)"),
        (lambda: contextvars.ContextVar("name", default=4), "value.get()"),
        (lambda: weakref.WeakKeyDictionary(), "len(value)"),
        (lambda: weakref.ref(Colour), "value().__name__"),
    ],
    ids=["Lock", "RLock", "local", "ContextVar", "WeakKeyDictionary", "ref"],
)
def test_what_each_process_has_its_own_of_travels_with_a_function(make: Callable[[], object], use: str) -> None:
    value = make()
    assert elsewhere(pickler.dumps(value, code=True), use) in {"True", "{}", "4", "0", "Colour"}


def test_a_lock_is_no_argument() -> None:
    with pytest.raises(TypeError, match="lock"):
        pickler.dumps(threading.Lock())
    with pytest.raises(values.Unpicklable, match=r"args\[0\]"):
        values.dump(((threading.Lock(),), {}), ("args", "kwargs"))


def test_an_open_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "text").open("w+") as file, pytest.raises(pickle.PicklingError, match="give its path"):
        pickler.dumps(file)


@contextlib.contextmanager
def block(value: int) -> Iterator[int]:
    yield value


def test_a_context_manager_that_nothing_has_entered_travels() -> None:
    with pickle.loads(pickler.dumps(block(3))) as value:
        assert value == 3
    with (entered := block(3)), pytest.raises(TypeError, match="generator"):
        pickler.dumps(entered)


def test_a_cached_property_travels_in_every_python(script: ModuleType) -> None:
    exec("class Lazy:\n    @functools.cached_property\n    def value(self): return 5\n", script.__dict__)
    assert elsewhere(pickler.dumps(script.Lazy()), "value.value") == "5"
    assert isinstance(functools.cached_property(len), functools.cached_property)


def test_code_of_another_python_is_refused() -> None:
    from outrider.engine.wire.copies import load_code

    with pytest.raises(ImportError, match="use one version of Python"):
        load_code("cpython-27", b"")


def test_a_local_function_of_a_module_that_is_not_there_takes_its_names_along() -> None:
    module = ModuleType("not_there")
    sys.modules[module.__name__] = module
    try:
        exec("rate = 3\ndef make():\n    def scaled(x): return rate * x\n    return scaled\n", module.__dict__)
        assert elsewhere(pickler.dumps(module.make()), "value(2)") == "6"
    finally:
        del sys.modules[module.__name__]
