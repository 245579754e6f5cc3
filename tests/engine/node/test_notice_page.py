"""Shared memory that one process writes and others read, at any moment."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest

from outrider.engine.node import notice_page as boards
from outrider.engine.node.notice_page import CELLS, EMPTY, KEPT, NoticePage, PageText, PostedNotice, World

OWN = PostedNotice(1, "file", 30.0, 1000.5)
PEER = PostedNotice(2, "gcp", 30.0, 1001.5, 3)


@pytest.fixture
def page() -> Iterator[NoticePage]:
    page = NoticePage()
    yield page
    page.close()


def test_a_text_is_seen_across_a_fork(page: NoticePage) -> None:
    assert page.read() == EMPTY
    text = PageText(OWN, {7: World(2, PEER, None), 8: World(1, None, 41)})
    pid = os.fork()
    if pid == 0:
        page.post(text)
        os._exit(0)
    os.waitpid(pid, 0)
    assert page.read() == text
    assert page.read() is page.read()


def test_and_through_the_descriptor(page: NoticePage) -> None:
    page.post(PageText(OWN))
    other = NoticePage(os.open(f"/proc/self/fd/{page.fd}", os.O_RDWR))
    assert other.read().own == OWN
    other.close()


def test_a_text_half_written_is_not_read(page: NoticePage) -> None:
    """Whatever of it is there: every byte of the header and the text, new or old."""
    page.post(PageText(PostedNotice(1, "a", 1.0, 1.0)))
    old, before = page.read(), bytes(page._page)
    page.post(PageText(PostedNotice(2, "b", 2.0, 2.0)))
    whole, after = PageText(PostedNotice(2, "b", 2.0, 2.0)), bytes(page._page)
    differ = [place for place in range(len(after)) if after[place] != before[place]]
    chance = random.Random(3)
    for _ in range(300):
        new = set(chance.sample(differ, chance.randrange(len(differ))))
        page._page[:] = bytes(after[i] if i in new else before[i] for i in range(200)) + after[200:]
        reader = NoticePage(os.dup(page.fd))
        reader._text = old
        assert reader.read() in (old, whole)
        reader.close()


def test_a_reader_never_sees_what_nobody_wrote(page: NoticePage) -> None:
    other = NoticePage(os.dup(page.fd))
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            page.post(PageText(PostedNotice(number, "x" * (number % 50), float(number), float(number))))

    thread = threading.Thread(target=write)
    thread.start()
    seen = 0
    for _ in range(3000):
        own = other.read().own
        assert own is None or (own.source, own.seconds, own.at) == ("x" * (own.number % 50), own.number, own.number)
        assert own is None or own.number >= seen
        seen = own.number if own is not None else seen
    stop.set()
    thread.join()
    other.close()


def test_the_latest_worlds_are_kept(page: NoticePage) -> None:
    page.post(PageText(None, {job: World(1, None, job) for job in range(3 * KEPT)}))
    assert list(page.read().worlds) == list(range(2 * KEPT, 3 * KEPT))


def test_the_longest_text_fits(page: NoticePage) -> None:
    far = PostedNotice(2**60, "ü" * 64, 1e300, 1e300, 2**30)
    page.post(PageText(far, {2**60 + n: World(2**60, far, 2**60) for n in range(KEPT)}))
    assert page.read().own == far


def test_questions_are_counted_by_attempt_and_found_by_generation(page: NoticePage) -> None:
    assert [page.count(0, 11, 7, 1) for _ in range(3)] == [1, 2, 3]
    assert page.count(1, 12, 7, 1) == 1
    assert page.count(2, 13, 7, 2) == 1
    assert page.count(CELLS - 1, 14, 8, 1) == 1
    assert (page.counted(7, 1), page.counted(7, 2), page.counted(8, 1), page.counted(9, 1)) == (3, 1, 1, 0)
    assert page.count(0, 15, 7, 2) == 1  # the worker's next task
    assert page.counted(7, 1) == 1


def test_a_node_with_too_many_tasks_says_so(page: NoticePage) -> None:
    with pytest.raises(RuntimeError, match="at a time"):
        page.count(CELLS, 1, 1, 1)


def test_cells_and_the_text_do_not_touch(page: NoticePage) -> None:
    far = PostedNotice(2**60, "ü" * 64, 1e300, 1e300, 2**30)
    text = PageText(far, {2**60 + n: World(2**60, far, 2**60) for n in range(KEPT)})
    page.count(0, 1, 7, 1)
    page.post(text)
    assert page.counted(7, 1) == 1
    page.count(0, 1, 7, 1)
    reader = NoticePage(os.dup(page.fd))
    assert reader.read() == text
    reader.close()
    assert boards._CELLS_AT % 8 == 0
