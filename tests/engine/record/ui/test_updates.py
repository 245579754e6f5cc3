"""Each reader of a stream gets each message once and in order, or is told to begin anew."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from outrider.engine.record.ui.watching import Updates

Step = tuple[str, int]  # "add" with a size, or "read" by a reader, "one" message of what there is by a reader
steps = st.lists(
    st.tuples(st.just("add"), st.integers(1, 40)) | st.tuples(st.sampled_from(["read", "one"]), st.integers(0, 2)),
    max_size=40,
)
MOST = 100


def wrong(played: list[Step], make: Callable[[str, int], Updates] = Updates) -> str:
    updates, sent = make("a", MOST), list[bytes]()
    cursors = dict.fromkeys(range(3), updates.newest)
    seen = dict.fromkeys(range(3), 0)  # how many of `sent` each reader has
    for kind, number in played:
        if kind == "add":
            sent.append(b"%d " % len(sent) * number)
            updates.add(sent[-1])
            if len(updates._kept) > 1 and sum(map(len, updates._kept)) > MOST:
                return "LIVE-3: more is kept"
            continue
        found = updates.since(cursors[number])
        if found is None:
            if sum(map(len, sent[seen[number] :])) <= MOST:
                return "LIVE-2: one that reads begins anew"
            cursors[number], seen[number] = updates.newest, len(sent)
            continue
        for cursor, message in found[:1] if kind == "one" else found:
            if message != sent[seen[number]]:
                return "LIVE-2: another message"
            cursors[number], seen[number] = cursor, seen[number] + 1
        if kind == "read" and seen[number] != len(sent):
            return "LIVE-2: a message is missing"
    return ""


@given(steps)
def test_no_reader_misses_a_message_or_has_it_twice(played: list[Step]) -> None:
    """LIVE-2, LIVE-3."""
    assert wrong(played) == ""


class Forgets(Updates):
    """LIVE-2 broken: whatever is there is taken for what is missing."""

    def since(self, cursor: str) -> list[tuple[str, bytes]] | None:
        missing = min(len(self._kept), self._count - int(cursor.rpartition("-")[2]))
        first = self._count - missing
        return [(f"a-{first + place}", self._kept[place - missing - 1]) for place in range(1, missing + 1)]


class Hoards(Updates):
    """LIVE-3 broken: everything is kept."""

    def add(self, message: bytes) -> None:
        self._count += 1
        self._kept = deque([*self._kept, message])


@pytest.mark.parametrize(("broken", "rule"), [(Forgets, "LIVE-2"), (Hoards, "LIVE-3")])
def test_streams_fall_without_their_guards(broken: Callable[[str, int], Updates], rule: str) -> None:
    assert_found(lambda played: wrong(played, broken).startswith(rule))


def test_live_2_and_3_falls_without_its_guard() -> None:
    """LIVE-2 and LIVE-3, by the classes above."""
    assert_found(lambda played: wrong(played, Forgets) != "")
    assert_found(lambda played: wrong(played, Hoards) != "")


def assert_found(bad: Callable[[list[Step]], bool]) -> None:
    try:
        assert find(steps, bad, settings=settings(max_examples=5000, derandomize=True))
    except NoSuchExample:
        pytest.fail("nothing notices it")


@pytest.mark.parametrize("cursor", ["", "a", "a-", "a-x", "a--1", "a-9", "b-1", "a-1 ", "a-٣", "a-" + "9" * 40])
def test_a_cursor_that_is_none_of_this_stream_begins_anew(cursor: str) -> None:
    updates = Updates("a")
    updates.add(b"first")
    assert updates.since(cursor) is None
    assert updates.since("a-0") == [("a-1", b"first")]
    assert updates.since("a-1") == []
