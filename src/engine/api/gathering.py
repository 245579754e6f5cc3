"""`gather`: a group of calls, whose results are returned as a tuple, or one by one as they become ready."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, Literal, TypeVar, overload

from .calls import AnyCall, Call, Group, GroupStream, MixedGroup, StreamCall, any_pending, grouped
from .errors import NotACall

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
T = TypeVar("T")


@overload
def gather(a: Call[A], /, *, stream: Literal[False] = False) -> Group[A]: ...
@overload
def gather(a: Call[A], b: Call[B], /, *, stream: Literal[False] = False) -> Group[A, B]: ...
@overload
def gather(a: Call[A], b: Call[B], c: Call[C], /, *, stream: Literal[False] = False) -> Group[A, B, C]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], /, *, stream: Literal[False] = False
) -> Group[A, B, C, D]: ...
@overload
def gather(
    a: Call[A], b: Call[B], c: Call[C], d: Call[D], e: Call[E], /, *, stream: Literal[False] = False
) -> Group[A, B, C, D, E]: ...
@overload
def gather(*calls: Call[T], stream: Literal[False] = False) -> Group[*tuple[T, ...]]: ...
@overload
def gather(*calls: Call[T], stream: Literal[True]) -> GroupStream[T]: ...
@overload
def gather(
    a: StreamCall[A], b: Call[B], /, *, stream: Literal[False] = False
) -> MixedGroup[tuple[AsyncGenerator[A, None], B], tuple[Iterator[A], B]]: ...
@overload
def gather(
    a: Call[A], b: StreamCall[B], /, *, stream: Literal[False] = False
) -> MixedGroup[tuple[A, AsyncGenerator[B, None]], tuple[A, Iterator[B]]]: ...
@overload
def gather(
    a: StreamCall[A], b: StreamCall[B], /, *, stream: Literal[False] = False
) -> MixedGroup[tuple[AsyncGenerator[A, None], AsyncGenerator[B, None]], tuple[Iterator[A], Iterator[B]]]: ...
@overload
def gather(
    *calls: StreamCall[T], stream: Literal[False] = False
) -> MixedGroup[tuple[AsyncGenerator[T, None], ...], tuple[Iterator[T], ...]]: ...
@overload
def gather(*calls: AnyCall, stream: Literal[False] = False) -> Group[*tuple[Any, ...]] | MixedGroup[Any, Any]: ...
def gather(*calls: AnyCall, stream: bool = False) -> Any:
    """Group calls to run together: ``gather(f(1), g(2)) >> pool``.

    Args:
        calls: Pending calls.
        stream: False: the result is a tuple in the order of the calls, with an iterator for each generator. True: the
            result is an iteration over the results as they become ready; generators are not allowed.
    """
    if not calls:
        raise NotACall("gather() takes at least one pending call: gather(f(1), g(2))")
    for each in calls:
        if stream and isinstance(each, StreamCall):
            raise NotACall(
                f"gather(..., stream=True) gives each call's one result when it is ready, and {each.code} has many: "
                "leave out stream=True, and its place has an iterator"
            )
        any_pending(each)
    return GroupStream(calls) if stream else grouped(calls)
