"""Exceptions come back whole whatever their ``__init__`` takes, and it is not run a second time."""

from __future__ import annotations

import copyreg
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from outrider.engine.node import exception_pickle


class KeywordOnly(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail = code, detail


class WithDefault(Exception):
    """Loads by its ``__init__`` too, but with another message."""

    def __init__(self, code: object, detail: str = "none") -> None:
        super().__init__(f"{code}: {detail}")


class OfTheSystem(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "is gone", path)


class OfAnImport(ImportError):
    def __init__(self, package: str) -> None:
        super().__init__("no such thing", name=package, path="there")


class OfText(UnicodeDecodeError):
    def __init__(self, reason: str) -> None:
        super().__init__("utf-8", b"abc", 0, 1, reason)


class Slotted(Exception):
    __slots__ = ("private",)

    def __init__(self, private: int) -> None:
        self.private = private


class _SlottedPrivately(Slotted):
    __slots__ = ("__secret",)

    def __init__(self, secret: int) -> None:
        super().__init__(0)
        self.__secret = secret

    @property
    def told(self) -> int:
        return self.__secret


@dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Several(ExceptionGroup[Exception]):
    def __init__(self, message: str, errors: list[Exception], hint: str = "none") -> None:
        super().__init__(message, errors)
        self.hint = hint


class OwnWay(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.both = first, second

    def __reduce__(self) -> tuple[Any, ...]:
        return OwnWay, self.both


def returned(error: BaseException) -> Any:
    return pickle.loads(exception_pickle.dumps(error))


@pytest.mark.parametrize(
    "error",
    [
        KeywordOnly(7, detail="no"),
        WithDefault(7, "no"),
        OfTheSystem("file"),
        OfAnImport("package"),
        OfText("why not"),
        Slotted(3),
        _SlottedPrivately(4),
        Frozen(3),
        OwnWay(1, 2),
        subprocess.CalledProcessError(returncode=3, cmd="false"),
        ValueError("as it is"),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_keeps_its_type_text_and_attributes(error: BaseException) -> None:
    back = returned(error)
    names = {*vars(error), "args", "errno", "filename", "name", "path", "reason", "private", "told", "code"}
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert {name: getattr(back, name, None) for name in names} == {name: getattr(error, name, None) for name in names}


def test_notes_come_along() -> None:
    error = KeywordOnly(7, detail="no")
    error.add_note("a note")
    assert returned(error).__notes__ == ["a note"]


def test_members_of_a_group_come_back_whole_too() -> None:
    back = returned(Several("two", [KeywordOnly(1, detail="a"), ValueError("b")], hint="look"))
    assert (type(back), back.message, back.hint) == (Several, "two", "look")
    assert back.exceptions[0].detail == "a"


def test_an_exception_that_holds_itself_comes_back() -> None:
    error: Any = KeywordOnly(7, detail="no")
    error.me = error
    back = returned(error)
    assert back.me is back


def test_the_init_of_the_class_is_not_run_again() -> None:
    runs = []

    class Counted(Exception):
        def __init__(self, number: int) -> None:
            super().__init__(number)
            runs.append(number)

    assert returned(Counted(5)).args == (5,)
    assert runs == [5]


# --- what cannot be pickled ------------------------------------------------------------------------------------------

T = TypeVar("T")


class Holds(Exception):
    def __init__(self, text: str, *, thing: object) -> None:
        super().__init__(text)
        self.thing, self.code = thing, 7


class HoldsTwice(Exception):
    """As the RetryError of tenacity."""

    def __init__(self, thing: object) -> None:
        super().__init__(thing, "busy")
        self.last_attempt = thing

    def __str__(self) -> str:
        return f"last attempt: {self.last_attempt}"


class SlottedHolder(Exception):
    __slots__ = ("code", "thing")

    def __init__(self, *, thing: object) -> None:
        self.thing, self.code = thing, 7


@dataclass(frozen=True)
class FrozenHolder(Exception):
    thing: object
    code: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenSlotted(Exception):
    thing: object
    code: int = 7


class OfType(Exception, Generic[T]):
    def __init__(self, *, thing: T) -> None:
        self.thing, self.code = thing, 7


class WithProperty(Exception):
    def __init__(self, *, thing: object) -> None:
        vars(self).update(code=7, thing=thing)

    @property
    def code(self) -> int:
        return int(vars(self)["code"])


class OfTheSystemToo(KeyError, OSError):
    def __init__(self, *, thing: object) -> None:
        super().__init__(2, "is gone")
        self.thing, self.code = thing, 7


class FailingReduce(Exception):
    def __init__(self, *, thing: object) -> None:
        self.thing, self.code = thing, 7

    def __reduce__(self) -> Any:
        raise TypeError("not this one")


class InheritedReduce(json.JSONDecodeError):
    """Inherits a ``__reduce__`` that gives the ``__init__`` what this one does not take."""

    def __init__(self, *, thing: object) -> None:
        super().__init__("no JSON", "text", 1)
        self.thing, self.code = thing, 7


class OwnState(Exception):
    def __init__(self, *, thing: object) -> None:
        self.thing, self.code = thing, 7

    def __setstate__(self, _state: Any) -> None:
        raise ValueError("this state is from another version")


class Holder(type):
    """The type of classes that cannot be pickled."""

    def __reduce__(cls) -> str:
        raise TypeError(cls.__name__)


copyreg.pickle(Holder, Holder.__reduce__)


class Unsendable(Exception, metaclass=Holder):
    pass


def in_a_function(*, thing: object) -> Exception:
    class Inner(Holds):
        pass

    return Inner("inner", thing=thing)


def generator() -> Iterator[int]:
    yield 1


@contextmanager
def things() -> Iterator[list[object]]:
    with socket.socket() as connection, open(os.devnull, "w") as file:  # noqa: PTH123
        yield [threading.Lock(), Future(), connection, file, generator(), sys._getframe(), lambda: connection]


def test_an_attribute_that_cannot_be_pickled_is_none_and_named() -> None:
    with things() as all_things:
        for thing in all_things:
            back = returned(Holds("busy", thing=thing))
            assert (type(back), back.args, back.code, back.thing) == (Holds, ("busy",), 7, None)
            (note,) = back.__notes__
            assert note.startswith("left out (cannot be pickled): .thing (")
            assert type(thing).__name__ in note


def test_an_argument_that_cannot_be_pickled_is_its_text() -> None:
    back = returned(HoldsTwice(threading.Lock()))
    text, other = back.args
    assert text.startswith("<unlocked _thread.lock object")
    assert (other, str(back)) == ("busy", "last attempt: None")
    left_out = "args[0] (_thread.lock), .last_attempt (_thread.lock)"
    assert back.__notes__ == [f"left out (cannot be pickled): {left_out}"]


@pytest.mark.parametrize(
    "make",
    [
        SlottedHolder,
        FrozenHolder,
        FrozenSlotted,
        OfType[int],
        WithProperty,
        OfTheSystemToo,
        FailingReduce,
        InheritedReduce,
        OwnState,
        in_a_function,
    ],
    ids=lambda make: getattr(make, "__name__", "OfType[int]"),
)
def test_any_class_keeps_its_attributes_with_and_without_a_lock(make: Any) -> None:
    for thing in ("a text", threading.Lock()):
        error = make(thing=thing)
        back = returned(error)
        assert type(back) is type(error)
        assert (back.code, back.thing) == (7, "a text" if thing == "a text" else None)
        assert str(back) == str(error) or "_thread.lock" in str(error)
        assert bool(getattr(back, "__notes__", ())) == (thing != "a text")


def test_a_members_lock_is_left_out_of_a_group() -> None:
    group = ExceptionGroup("two", [Holds("a", thing=threading.Lock()), Unsendable("b"), ValueError("c")])
    back = returned(group)
    assert [repr(each) for each in back.exceptions] == [
        "Holds('a')",
        f"RuntimeError('{__name__}.Unsendable: b')",
        "ValueError('c')",
    ]
    assert (back.exceptions[0].code, back.exceptions[0].thing) == (7, None)


def test_an_error_that_holds_itself_and_a_lock_comes_back() -> None:
    error: Any = Holds("busy", thing=threading.Lock())
    error.me = error
    back = returned(error)
    assert back.me is back


def test_a_class_that_cannot_be_pickled_raises() -> None:
    with pytest.raises(TypeError, match="Unsendable"):
        exception_pickle.dumps(Unsendable())


# --- causes ----------------------------------------------------------------------------------------------------------


def caught(cause: Exception, then: str) -> BaseException:
    try:
        try:
            raise cause
        except Exception as error:
            if then == "from it":
                raise KeyError("outer") from error
            if then == "from None":
                raise KeyError("outer") from None
            raise KeyError("outer")  # noqa: B904
    except KeyError as error:
        return error


def test_cause_and_context_come_back_as_a_traceback_shows_them() -> None:
    cause = Holds("inner", thing=threading.Lock())
    explicit, implicit, hidden = (returned(caught(cause, how)) for how in ("from it", "", "from None"))
    assert (explicit.__cause__.code, explicit.__context__, explicit.__suppress_context__) == (
        7,
        explicit.__cause__,
        True,
    )
    assert (implicit.__cause__, implicit.__context__.code, implicit.__suppress_context__) == (None, 7, False)
    assert (hidden.__cause__, hidden.__context__, hidden.__suppress_context__) == (None, None, True)


def test_causes_of_any_class_keep_their_own_causes() -> None:
    middle = InheritedReduce(thing=1)
    middle.__cause__ = OwnWay(1, 2)
    error = Several("group", [caught(middle, "from it")])  # type: ignore[list-item]
    back = returned(error).exceptions[0].__cause__
    assert (type(back), back.code, back.__cause__.both) == (InheritedReduce, 7, (1, 2))


def test_causes_in_a_circle_come_back_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    back = returned(first)
    assert repr(back.__context__) == "ValueError('second')"
    assert back.__context__.__context__ is None


def chain(length: int, make: Any) -> BaseException:
    error = make()
    for _ in range(length):
        outer = make()
        outer.__cause__, error = error, outer
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize("make", [ValueError, lambda: OwnWay(1, 2)], ids=["plain", "with a __reduce__"])
def test_a_long_chain_of_causes_is_cut_and_a_note_says_so(make: Any) -> None:
    pickled = exception_pickle.dumps(chain(2_000, make))
    assert len(pickled) < 4 << 20
    back: Any = pickle.loads(pickled)
    depth = 0
    while back.__cause__ is not None:
        back, depth = back.__cause__, depth + 1
    assert 8 <= depth <= 16
    assert back.__notes__[0].startswith("left out (cannot be pickled): .__cause__ (")


def test_a_cause_that_cannot_be_pickled_is_named() -> None:
    error = caught(Unsendable("b"), "from it")
    assert returned(error).__notes__ == [f"left out (cannot be pickled): .__cause__ ({__name__}.Unsendable)"]


class Elsewhere(Exception):
    """Has a module that the loading side cannot import."""


def test_a_cause_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = exception_pickle.dumps(caught(Elsewhere("b"), "from it"))
    monkeypatch.delitem(globals(), "Elsewhere")
    back: Any = pickle.loads(pickled)
    assert (repr(back), back.__cause__) == ("KeyError('outer')", None)
    assert back.__notes__[0].startswith("left out (cannot be unpickled here): its cause (AttributeError: ")


def test_causes_are_left_out_where_they_are_too_large() -> None:
    error = caught(ValueError("x" * 100_000), "from it")
    small: Any = pickle.loads(exception_pickle.dumps(error, most_bytes=64 * 1024))
    assert (repr(small), small.__cause__) == ("KeyError('outer')", None)
    large: Any = returned(caught(ValueError("x" * (2 << 20)), "from it"))
    assert large.__cause__ is None
    assert large.__notes__ == ["left out (cannot be pickled): .__cause__ (ValueError, too large)"]
