"""Requests for lists that a cloud sends in pages, each with a token for the next page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def every_page(ask: Callable[[str], Awaitable[tuple[Iterable[T], str]]]) -> list[T]:
    """Return all items of a list.

    ``ask`` requests a page by its token (the first page: ``""``), and returns the page's items and the next token. The
    last page has no next token, or repeats its own token.
    """
    items: list[T] = []
    token = ""
    while True:
        page, more = await ask(token)
        items += page
        if not more or more == token:
            return items
        token = more
