"""Which rank failed first, of any failures."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.api import errors
from outrider.engine.serialization.error_translation import FOLLOWS_S, Failure, Sign, first_of, sign_of

_times = st.integers(0, 80).map(lambda tenths: tenths / 8)  # exact, also when moved
_failures = st.lists(
    st.builds(Failure, st.integers(0, 63), _times, st.sampled_from(Sign)),
    min_size=1,
    max_size=8,
    unique_by=lambda f: f.rank,
)


@given(_failures, st.randoms(use_true_random=False), st.integers(0, 1000))
def test_the_first_does_not_depend_on_the_order_or_on_the_clocks_origin(
    failures: list[Failure], random: object, moved: int
) -> None:
    first = first_of(failures)
    assert first in failures
    shuffled = failures[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert first_of(shuffled) == first
    assert first_of([each._replace(at=each.at + moved) for each in failures]).rank == first.rank


@given(_failures)
def test_the_first_is_the_earliest_unless_that_speaks_of_a_peer(failures: list[Failure]) -> None:
    first = first_of(failures)
    earliest = min(failures, key=lambda each: (each.at, each.sign, each.rank))
    assert first.at <= earliest.at + FOLLOWS_S
    if earliest.sign is Sign.OWN:
        assert first == earliest
    for each in failures:  # what came before it says more of others
        assert each.at >= first.at or each.sign > first.sign
        assert each.sign >= first.sign or each.at > earliest.at + FOLLOWS_S


@pytest.mark.parametrize(
    ("error", "sign"),
    [
        (ValueError("lr is negative"), Sign.OWN),
        (errors.TaskKilled("x", exit_code=3), Sign.OWN),
        (errors.TaskKilled("x", signal=signal.SIGKILL, out_of_memory=True), Sign.OWN),
        (errors.TaskKilled("x", signal=signal.SIGABRT), Sign.ABORTED),
        (ConnectionResetError(104, "Connection reset by peer"), Sign.PEER_GONE),
        (RuntimeError("[transport/tcp/pair.cc:547] Connection closed by peer [::1]:4711"), Sign.PEER_GONE),
        (RuntimeError("NCCL error: remote process exited or there was a network error"), Sign.PEER_GONE),
        (errors.TaskFailed("train raised X: Broken pipe", kind="X"), Sign.PEER_GONE),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_an_error_says_of_others(error: Exception, sign: Sign) -> None:
    assert sign_of(error) is sign
