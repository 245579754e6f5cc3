"""The base of pending calls and of groups: they are not results, and they can be printed as code.

`short` formats values for messages as Python code, at most a line long.
"""

from __future__ import annotations

import reprlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from .errors import NotACall


class _Short(reprlib.Repr):
    """A `reprlib.Repr` that truncates bytes before it formats them; Python's own takes seconds for a gigabyte."""

    def repr_bytes(self, value: bytes, level: int) -> str:  # noqa: ARG002
        return repr(value) if len(value) <= self.maxstring else f"{bytes(value[: self.maxstring // 2])!r}..."

    repr_bytearray = repr_bytes


short = _Short()
short.maxstring = short.maxother = 60


C = TypeVar("C", bound=Callable[..., Any])

_for_a_task: ContextVar[bool] = ContextVar("outrider_for_a_task", default=False)


class Pickled:
    """A marker: ``latest`` becomes a new object each time that a pending call is pickled, in any thread."""

    latest: object = None


@contextmanager
def refused_as_arguments() -> Iterator[None]:
    """Make pending calls refuse to be pickled during the block."""
    token = _for_a_task.set(True)
    try:
        yield
    finally:
        _for_a_task.reset(token)


class Pending:
    """The base class of pending calls. Using a call like its result raises an error that says how to get the result."""

    __slots__ = ()

    @property
    @abstractmethod
    def code(self) -> str:
        """The call as Python code."""

    def _awaited(self) -> str:
        """Return Python code that runs the call and returns its result."""
        return f"await ({self.code} >> pool)"

    def _not_yet(self, here: str = "") -> str:
        return f"{self.code} is a pending call, not a result: run it with {self._awaited()}{here}."

    def __bool__(self) -> NoReturn:
        chained = "(Comparisons chain in Python: give a > pool parentheses of its own.)"
        raise NotACall(f"{self._not_yet()} {chained}")

    def __repr__(self) -> str:
        return f"<{self.code} has not run: {self.code} >> pool runs it>"

    if not TYPE_CHECKING:  # hidden from type checkers, which then report these wrong uses themselves

        def _needs_result(self, *_others: object) -> NoReturn:
            raise NotACall(self._not_yet())

        __await__ = __iter__ = __len__ = __getitem__ = __contains__ = __int__ = __float__ = __index__ = _needs_result
        __add__ = __sub__ = __mul__ = __truediv__ = __floordiv__ = __mod__ = __pow__ = __or__ = _needs_result
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rpow__ = __ror__ = _needs_result
        __neg__ = __abs__ = __lt__ = __le__ = __ge__ = _needs_result

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(f"{self._not_yet()} It has no {name!r}.", name=name, obj=self)

        def __reduce_ex__(self, protocol: int) -> Any:
            Pickled.latest = object()
            if _for_a_task.get():
                raise NotACall(
                    f"{self.code} has not run, and a task gets values: await it first, x = {self._awaited()}"
                )
            return super().__reduce_ex__(protocol)


def awaited_as(code: str) -> Callable[[C], C]:
    """Make the coroutines of a method show how to run them, in their `repr` and in Python's warning about a forgotten
    await.

    Python takes both texts from the qualified name of the coroutine function, so this costs nothing per call. The
    method stays a coroutine function that returns a native coroutine, as task groups require.

    Args:
        code: The line to write, as "await pool.run(call)".
    """

    def named(verb: C) -> C:
        verb.__qualname__ += f" (to run it, in an async def or a notebook's cell: {code})"
        return verb

    return named


def called_with(name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
    """Return a call as Python code, with shortened arguments."""
    return f"{name}({', '.join([*map(shown, args), *(f'{key}={shown(each)}' for key, each in kwargs.items())])})"


def shown(value: object) -> str:
    return value.code if isinstance(value, Pending) else short.repr(value)
