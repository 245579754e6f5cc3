"""Lists that a cloud gives in pages, each with a token for the next one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def every_page(ask: Callable[[str], Awaitable[tuple[Iterable[T], str]]]) -> list[T]:
    """All items of a list. ``ask`` is given a page's token, at first ``""``, and returns its items and the next token.

    The last page has no token, or its own once more.
    """
    items: list[T] = []
    token = ""
    while True:
        page, more = await ask(token)
        items += page
        if not more or more == token:
            return items
        token = more
