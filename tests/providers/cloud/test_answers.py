"""Answers of clouds: in pages, kept for a while, and several at the same time."""

from __future__ import annotations

from functools import partial

import anyio
import pytest

from outrider.providers.cloud import caching
from outrider.providers.cloud.caching import kept_for
from outrider.providers.cloud.calls import every_page, from_extra
from outrider.providers.errors import BadRequest, ProviderError
from outrider.providers.shared.side_by_side import all_of

pytestmark = pytest.mark.anyio


async def test_a_list_is_read_to_its_last_page() -> None:
    pages = {"": ([1, 2], "a"), "a": ([], "b"), "b": ([3], "")}
    asked: list[str] = []

    async def ask(token: str) -> tuple[list[int], str]:
        asked.append(token)
        return pages[token]

    assert await every_page(ask) == [1, 2, 3]
    assert asked == ["", "a", "b"]


async def test_a_page_that_leads_to_itself_is_the_last() -> None:
    async def ask(token: str) -> tuple[list[str], str]:
        return [token], "more"

    assert await every_page(ask) == ["", "more"]


async def test_an_answer_holds_for_its_arguments_and_its_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    now, asked = 0.0, list[tuple[str, list[int]]]()
    monkeypatch.setattr(caching, "_cache", {})
    monkeypatch.setattr(caching, "monotonic", lambda: now)

    def cloud_of(api: str) -> str:
        return api

    @kept_for(60.0, by=cloud_of)
    async def total(api: str, numbers: list[int]) -> int:
        asked.append((api, numbers))
        if not numbers:
            raise ProviderError("no numbers")
        return sum(numbers)

    for _ in range(2):
        assert await total("here", [1, 2]) == 3
        assert await total("here", [1, 4]) == 5
        assert await total("there", [1, 2]) == 3
        with pytest.raises(ProviderError):
            await total("here", [])
    assert asked == [("here", [1, 2]), ("here", [1, 4]), ("there", [1, 2]), ("here", []), ("here", [])]
    now = 60.0
    await total("here", [1, 2])
    assert asked[-1] == ("here", [1, 2])


async def test_questions_are_asked_at_the_same_time_and_answered_in_their_order() -> None:
    begun = anyio.Event()

    async def first() -> int:
        await begun.wait()
        return 1

    async def second() -> str:
        begun.set()
        return "2"

    with anyio.fail_after(60):
        assert await all_of(first, second) == (1, "2")
        assert await all_of(*(partial(_same, each) for each in "abc")) == ("a", "b", "c")


async def test_of_several_errors_the_clouds_is_raised() -> None:
    async def fails(error: Exception) -> None:
        raise error

    with pytest.raises(ProviderError, match="the cloud's"):
        await all_of(partial(fails, ValueError()), partial(fails, ProviderError("the cloud's")))


def test_a_missing_extra_says_how_it_is_installed() -> None:
    with pytest.raises(BadRequest, match=r"^Sky needs a part .*: pip install 'outrider\[sky\]'"):  # noqa: SIM117
        with from_extra("Sky", "sky", "skylib"):
            raise ImportError("none", name="skylib.calls")
    with pytest.raises(ImportError, match="another"):  # noqa: SIM117
        with from_extra("Sky", "sky", "skylib"):
            raise ImportError("another", name="skylibrary")


async def _same(text: str) -> str:
    return text
