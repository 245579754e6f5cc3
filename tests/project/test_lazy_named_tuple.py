"""Classes of `lazy_named_tuple` behave as those of the standard library do, and have their ``__new__`` written late."""

from __future__ import annotations

import copy
import pickle
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import lazy_named_tuple

NAMES = ["a", "b", "c", "d"]


@st.composite
def sources(draw: st.DrawFn) -> str:
    """The text of a class ``C`` for a module that has a ``NamedTuple``."""
    names = draw(st.lists(st.sampled_from(NAMES), max_size=4, unique=True))
    begin = draw(st.integers(0, len(names)))  # from which field on there are defaults
    text = ["from __future__ import annotations", "class C(NamedTuple):", '    """A class."""']
    text += [f"    {name}: int{f' = {place}' if place >= begin else ''}" for place, name in enumerate(names)]
    text += ["    def total(self): return sum(self)", "    @property", "    def first(self): return self[0]"]
    if draw(st.booleans()):
        text.append("    def __repr__(self): return 'C'")
    return "\n".join(text)


def outcome(action: Any, *args: Any, **kwargs: Any) -> Any:
    """What it returns, or the kind of error that it raises with its words."""
    try:
        return action(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 - any of them is an outcome
        return type(error), str(error).replace("<lambda>", "__new__").replace("C.__new__", "__new__")


def behaviour(base: Any, source: str, args: list[int], named: dict[str, int]) -> list[Any]:
    module: dict[str, Any] = {"NamedTuple": base, "__name__": "made"}
    exec(source, module)
    kind = module["C"]
    found: list[Any] = [outcome(lambda: tuple(kind(*args, **named))) for _ in range(2)]
    found += [
        kind._fields,
        kind._field_defaults,
        kind.__match_args__,
        kind.__doc__,
        kind.__name__,
        kind.__bases__ != (),
    ]
    found.append(typing.get_type_hints(kind))
    found.append(outcome(lambda: tuple(kind._make(args))))
    made = tuple.__new__(kind, range(len(kind._fields)))  # as the codec makes them
    found += [repr(made), made == tuple(made), hash(made), len(made), made._asdict(), made.total()]
    found += [outcome(lambda: made.first), [getattr(made, name) for name in kind._fields]]
    found += [outcome(lambda: tuple(made._replace(**named))), copy.copy(made) == made, made.__getnewargs__()]
    found += [outcome(setattr, made, name, 1)[0] for name in kind._fields]
    return found


@given(
    sources(),
    st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(NAMES), st.integers()),
    st.sampled_from([0, 1, lazy_named_tuple.FEW]),
)
@settings(max_examples=200, deadline=None)
def test_classes_behave_as_the_standard_librarys(source: str, args: list[int], named: dict[str, int], few: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lazy_named_tuple, "FEW", few)
        ours = behaviour(lazy_named_tuple.NamedTuple, source, args, named)
    assert ours == behaviour(typing.NamedTuple, source, args, named)


class Point(lazy_named_tuple.NamedTuple):
    x: int
    y: int = 2


class Above(Point):
    pass


def test_objects_can_be_pickled_and_matched() -> None:
    assert pickle.loads(pickle.dumps(Point(1))) == Point(1, 2)
    assert type(pickle.loads(pickle.dumps(Point(1)))) is Point
    match Point(3):
        case Point(x, y=2):
            assert x == 3
        case _:
            pytest.fail("it does not match")


def test_the_first_object_may_be_one_of_a_subclass() -> None:
    class Base(lazy_named_tuple.NamedTuple):
        x: int

    class Sub(Base):
        pass

    assert type(Sub(1)) is Sub
    assert type(Base(1)) is Base


def test_new_is_written_once_and_when_there_are_several_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_named_tuple, "FEW", 1)

    class Lazy(lazy_named_tuple.NamedTuple):
        x: int
        y: int = 2

    before = Lazy.__new__
    assert Lazy(1) == (1, 2)
    assert Lazy.__new__ is before
    assert Lazy(1) == (1, 2)
    written = Lazy.__new__
    assert written is not before
    assert Lazy(y=3, x=1) == (1, 3)
    assert Lazy.__new__ is written


@pytest.mark.parametrize("source", ["x: int = 1\n    y: int", "x: int\n    def __new__(cls): pass"])
def test_what_the_standard_library_refuses_is_refused(source: str) -> None:
    for base in (typing.NamedTuple, lazy_named_tuple.NamedTuple):
        with pytest.raises((TypeError, AttributeError)):
            exec(f"from __future__ import annotations\nclass C(NamedTuple):\n    {source}", {"NamedTuple": base})
