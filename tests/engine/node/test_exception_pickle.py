"""Exceptions come back whole whatever their ``__init__`` takes, and it is not run a second time."""

from __future__ import annotations

import pickle
import subprocess
from dataclasses import dataclass
from typing import Any

import pytest

from outrider.engine.node.exception_pickle import PortableException


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
    return pickle.loads(pickle.dumps(PortableException(error), 5))


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
