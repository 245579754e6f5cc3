"""WATCH-2 and WATCH-3, whatever fails and whenever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.providers.base import Warned
from outrider.providers.errors import NotAuthorized, ProviderError
from outrider.providers.shared import watching
from outrider.providers.shared.watching import BLIND_S, LONGEST_S, Watching

outcomes = st.sampled_from([None, ProviderError("no answer"), NotAuthorized("expired"), KeyError("x"), ValueError("y")])


@settings(derandomize=True, database=None)  # that it falls without its guards is to be seen each time
@given(st.lists(st.tuples(st.floats(0.1, 60), outcomes), max_size=60))
def test_blindness_is_told_once_and_its_end_once(steps: list[tuple[float, Exception | None]]) -> None:
    watched, now, since, defects = Watching("it"), 0.0, None, set[type]()
    blind = False
    for passed_s, error in steps:
        now += passed_s
        if error is None:
            told = watched.succeeded(now)
            assert (told is not None) == blind
            since, blind = None, False
            continue
        since = now if since is None else since
        told = watched.failed(error, now)
        assert 1.0 <= watched.pause_s <= LONGEST_S
        if not blind and now - since >= BLIND_S:
            assert told is not None
            assert "nothing has been seen of it" in told.text
            blind = True
        elif not isinstance(error, ProviderError) and type(error) not in defects:
            assert isinstance(told, Warned)
            assert "by a defect" in told.text
            defects.add(type(error))
        else:
            assert told is None


def test_a_watcher_says_what_failed() -> None:
    told = Watching("the machines of train").failed(KeyError("State"), 5.0)
    assert told == Warned(
        "who watches the machines of train has failed by a defect (KeyError: 'State'): it is tried again"
    )


@pytest.mark.parametrize(
    ("invariant", "name", "broken"), [("WATCH-2", "BLIND_S", 1e9), ("WATCH-3", "ProviderError", Exception)]
)
def test_the_invariant_falls_without_its_guard(
    invariant: str, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, name, broken)
    with pytest.raises((AssertionError, ExceptionGroup)):  # several in different places are a group
        test_blindness_is_told_once_and_its_end_once()
