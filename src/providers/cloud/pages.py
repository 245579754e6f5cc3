"""Paged lists of a cloud, in which each page has a token for the next page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def every_page(ask: Callable[[str], Awaitable[tuple[Iterable[T], str]]]) -> list[T]:
    """Return all items of a list. ``ask`` takes a page's token, at first ``""``; it returns the items and the next
    token.

    The last page has no token, or repeats its own.
    """
    items: list[T] = []
    token = ""
    while True:
        page, more = await ask(token)
        items += page
        if not more or more == token:
            return items
        token = more
