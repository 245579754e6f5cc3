"""How soon a call is made again, and how often."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.cloud.calls import TRY_S, Tries, Trouble, retry

kinds = st.sampled_from(["throttled", "unreached", "broken", "lost"])
lucks = st.floats(0, 1, exclude_max=True)


@given(kinds, st.integers(1, 60), st.booleans(), lucks)
def test_pauses_are_bounded_and_grow_with_the_luck(kind: Trouble, attempt: int, safe: bool, luck: float) -> None:
    pause_s = retry(kind, attempt, safe=safe, luck=luck)
    if pause_s is not None:
        assert 0 <= pause_s <= 10
        assert retry(kind, attempt, safe=safe, luck=0.0) == 0.0


@given(st.integers(1, 60), lucks)
def test_create_without_an_answer_is_not_repeated(attempt: int, luck: float) -> None:
    assert retry("lost", attempt, safe=False, luck=luck) is None
    assert retry("broken", attempt, safe=False, luck=luck) is None
    assert retry(None, attempt, safe=True, luck=luck) is None


@given(lucks)
def test_call_that_was_not_carried_out_is_repeated(luck: float) -> None:
    assert retry("throttled", 1000, safe=False, luck=luck) is not None
    assert retry("unreached", 1, safe=False, luck=luck) is not None
    assert retry("unreached", 4, safe=True, luck=luck) is None


def test_a_try_that_may_have_been_carried_out_is_remembered() -> None:
    for trouble, reads, unsure in (("lost", False, True), ("broken", False, True), ("lost", True, False),
                                   ("throttled", False, False), (None, False, False)):  # fmt: skip
        tries = Tries(safe=True, timeout_s=60.0, tries=1)
        tries.pause_s(trouble, reads=reads, luck=0.5)  # type: ignore[arg-type]
        assert tries.unsure is unsure
        tries.pause_s("throttled", reads=reads, luck=0.5)
        assert tries.unsure is unsure


def test_a_call_that_is_made_once_has_all_the_time() -> None:
    assert Tries(safe=False, timeout_s=90.0).try_s == 90.0
    assert [Tries(safe=True, timeout_s=each).try_s for each in (90.0, 12.0)] == [30.0, TRY_S]
