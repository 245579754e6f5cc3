"""Classes of `lazy_dataclass` behave as those of the standard library do, whatever fields and options they have."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import subprocess
import sys
import threading
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import lazy_dataclass

DECLARED = [  # what may stand behind a field's name
    "int",
    "int = 1",
    "int = field(default=2)",
    "list[int] = field(default_factory=list)",
    "int = field(kw_only=True)",
    "int = field(kw_only=True, default=3)",
    "int = field(default=4, compare=False)",
    "int = field(default=5, hash=False)",
    "int = field(default=6, repr=False)",
    "int = field(default=7, init=False)",
]
names = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True)
declared = st.sampled_from(DECLARED)


@st.composite
def sources(draw: st.DrawFn) -> str:
    """The text of a class ``C`` with a base ``B``, for a module that has a decorator ``dataclass``."""
    options = {name: draw(st.booleans()) for name in ("eq", "repr", "kw_only")} | {"slots": True}
    options["frozen"] = draw(st.booleans())
    text = ["from __future__ import annotations"]
    for name, base in (("B", ""), ("C", "(B)")):
        text += [f"@dataclass({', '.join(f'{key}={value}' for key, value in options.items())})", f"class {name}{base}:"]
        text += [
            '    """A class."""',
            *(f"    {field}: {draw(declared)}" for field in draw(names)),
            "    g: ClassVar[int] = 8",
        ]
        if draw(st.booleans()):
            text.append("    def __post_init__(self): made.append(type(self).__name__)")
        if name == "C" and draw(st.booleans()):
            text.append("    def __repr__(self): return 'C'")
        if name == "C" and draw(st.booleans()):
            text.append("    def __hash__(self): return 9")
        if name == "C" and draw(st.booleans()):
            text.append("    def __eq__(self, other): return True")
    return "\n".join(text)


def outcome(action: Any, *args: Any, **kwargs: Any) -> Any:
    """What it returns, or the kind of error that it raises."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any of them is an outcome
        return type(error)


def shown(value: Any) -> Any:
    """It without its place in memory, so that it can be compared."""
    if isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    return re.sub(" at 0x[0-9a-f]+", "", repr(value)), fields


def behaviour(decorator: Any, source: str, given_: dict[str, Any], changes: dict[str, Any]) -> list[Any]:
    """What can be seen of ``C``, made from these values, and changed in these."""
    module = ModuleType("behaviour")
    made: list[str] = []
    module.__dict__.update(dataclass=decorator, field=dataclasses.field, ClassVar=ClassVar, made=made)
    sys.modules["behaviour"] = module  # where both look for the names of annotations, and pickle for the class
    try:
        error = outcome(exec, source, module.__dict__)
        return [error] if error else [*_of_class(module.__dict__["C"], given_, changes), made]
    finally:
        del sys.modules["behaviour"]


def _of_class(cls: Any, given_: dict[str, Any], changes: dict[str, Any]) -> list[Any]:
    fields = dataclasses.fields(cls)
    seen: list[Any] = [
        [(field.name, field.type, field.init, field.kw_only, field.default) for field in fields],
        (cls.__match_args__, cls.__doc__, dataclasses.is_dataclass(cls), cls.__hash__ is None, cls.__slots__),
        str(inspect.signature(cls)),
    ]
    first, second = outcome(cls, **given_), outcome(cls, **given_)
    seen += [shown(first), shown(outcome(cls, *given_.values())), shown(outcome(cls, *range(7)))]
    if isinstance(first, type):
        return seen
    copies = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
    other = outcome(dataclasses.replace, first, **changes)
    seen += [first == second, first == 1, outcome(hash, first) == outcome(hash, second), first == other, shown(other)]
    seen += [*(shown(make(first)) for make in copies), dataclasses.asdict(first)]
    for field in fields:
        seen += [outcome(setattr, first, field.name, 1), outcome(delattr, first, field.name), shown(second)]
    return seen


@settings(deadline=None)  # each compiles a module: on a machine with other work that takes long
@given(
    sources(),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1)),
    st.sampled_from([{}, {"a": 1}, {"b": 0}]),
    st.sampled_from([0, 1, lazy_dataclass.FEW]),
)
def test_behaviour_is_that_of_the_standard_library(source, given_, changes, few):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lazy_dataclass, "FEW", few)
        ours = behaviour(lazy_dataclass.dataclass, source, given_, changes)
    assert ours == behaviour(dataclass, source, given_, changes)


def test_init_is_written_once_and_when_there_are_several_objects(monkeypatch):
    monkeypatch.setattr(lazy_dataclass, "FEW", 1)

    @lazy_dataclass.dataclass(slots=True)
    class Pair:
        left: int
        right: int = 2

    first = Pair.__init__
    assert (Pair(1).right, Pair.__init__ is first) == (2, True)
    assert (Pair(1).right, Pair.__init__ is first) == (2, False)
    written = Pair.__init__
    assert (Pair(1, right=3).right, Pair.__init__ is written) == (3, True)


def test_a_subclass_that_is_no_dataclass_has_its_base_s_init():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Base:
        a: int

    class Named(Base):
        def __init__(self, name: str) -> None:
            super().__init__(1)
            self.name = name

    first, second = Named("first"), Named("second")
    assert (first.a, first.name, second.name) == (1, "first", "second")
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(first, "a", 2)  # noqa: B010 - type checkers refuse it


def test_threads_may_make_the_first_objects_at_once():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class One:
        a: int
        b: list[int] = dataclasses.field(default_factory=list)

    made: list[One] = []
    meet = threading.Barrier(8)

    def make(number: int) -> None:
        meet.wait()
        made.append(One(number))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.a for one in made) == list(range(8))
    assert len({id(one.b) for one in made}) == 8


def test_an_init_that_was_put_around_it_stays():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Base:
        a: int = 1

    first, calls = Base.__init__, []

    def init(self: Base, *args: int) -> None:
        calls.append(args)
        first(self, *args)

    Base.__init__ = init  # type: ignore[method-assign]
    assert [Base(2).a, Base().a, Base(3).a] == [2, 1, 3]
    assert calls == [(2,), (), (3,)]


@lazy_dataclass.dataclass(frozen=True, slots=True)
class Elsewhere:
    """A class at the top of a module, whose names its annotations use."""

    when: Sequence[float]
    where: ModuleType | None = None


def test_the_init_of_a_class_is_of_its_module():
    class Named(Elsewhere):
        pass

    assert str(inspect.signature(Named)) == "(when: 'Sequence[float]', where: 'ModuleType | None' = None) -> None"
    assert inspect.signature(Elsewhere).return_annotation is None
    hints = typing.get_type_hints(Elsewhere.__init__)
    assert hints == {"when": Sequence[float], "where": ModuleType | None, "return": type(None)}
    assert Elsewhere.__init__.__module__ == __name__


def test_one_field_compares_as_a_tuple_does():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class One:
        a: object

    class Odd:
        def __eq__(self, other: object) -> bool:
            return [other]  # type: ignore[return-value] - as arrays do

        __hash__ = None  # type: ignore[assignment]

    assert One(value := float("nan")) == One(value)
    assert (One(Odd()) == One(Odd())) is True


def test_what_inherits_has_a_signature_of_its_own():
    @lazy_dataclass.dataclass(frozen=True, slots=True)
    class Base:
        a: int

        def __call__(self, x: int) -> None: ...

    class Named(Base):
        def __init__(self, name: str) -> None:
            super().__init__(1)

    assert list(inspect.signature(Named).parameters) == ["name"]
    assert list(inspect.signature(Base(1)).parameters) == ["x"]
    assert str(inspect.signature(Base)) == "(a: 'int') -> None"


@pytest.mark.parametrize("frozen", [True, False])
def test_a_class_that_has_an_init_of_its_own_keeps_it(frozen):
    def behaviour_of(decorator: Any) -> list[Any]:
        class Sized:
            low: int
            high: int = 9

            def __init__(self, *, around: int) -> None:
                object.__setattr__(self, "low", around - 1)
                object.__setattr__(self, "high", around + 1)

        cls: Any = decorator(frozen=frozen, slots=True, init=False)(Sized)
        one, same, other = cls(around=5), cls(around=5), cls(around=6)
        return [
            str(inspect.signature(cls)),
            (one == same, one == other, outcome(hash, one) == outcome(hash, same), cls.__match_args__),
            (shown(one)[1], dataclasses.asdict(copy.copy(one)), outcome(cls, 1), outcome(dataclasses.replace, one)),
            (outcome(setattr, one, "low", 1), cls.__dataclass_params__.frozen, cls.__init__.__qualname__),
        ]

    assert behaviour_of(lazy_dataclass.dataclass) == behaviour_of(dataclass)


def test_the_options_of_a_pool_are_no_classes_of_the_standard_library():
    program = "import dataclasses\nkinds = []\nreal = dataclasses._process_class\n"
    program += "def count(cls, *rest):\n    kinds.append(cls)\n    return real(cls, *rest)\n"
    program += "dataclasses._process_class = count\nfrom outrider import Local, Pool, compute\n"
    program += "print(*sorted(k.__qualname__ for k in kinds if k.__module__.startswith('outrider.')))"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout.split() == ["_Changing", "_Frozen"]


@pytest.mark.parametrize(
    ("body", "error"),
    [("a: int = 1\n    b: int", TypeError), ("a: list[int] = []", ValueError), ("a: set = set()", ValueError)],
)
def test_mistakes_are_seen_at_the_definition(body, error):
    with pytest.raises(error):
        exec(
            f"from __future__ import annotations\n@dataclass(slots=True)\nclass Wrong:\n    {body}",
            {"dataclass": lazy_dataclass.dataclass},
        )


def test_the_classes_of_a_pool_are_these():
    """The standard library's own decorator is used where it must be: each use of it costs every program."""
    program = "import dataclasses\nkinds = []\nreal = dataclasses._process_class\n"
    program += "def count(cls, *rest):\n    kinds.append(cls)\n    return real(cls, *rest)\n"
    program += "dataclasses._process_class = count\nimport outrider.engine.client.open_pool\n"
    program += "print(*sorted(k.__qualname__ for k in kinds if k.__module__.startswith('outrider.actors')))"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert len(done.stdout.split()) <= 5, done.stdout
