"""The exit code of a run, from how it ended."""

from __future__ import annotations

import pickle

import pytest

from outrider import errors
from outrider.engine.scripts.failures import exit_code
from outrider.engine.scripts.program import ProgramFailed


def failed(first: Exception, *others: Exception) -> errors.BroadcastFailed:
    given = [*others, first]
    outcomes = [errors.Outcome(rank, rank, error) for rank, error in enumerate(given)]
    return errors.BroadcastFailed("train failed", [first, *others], outcomes, outcomes[-1])


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (failed(ProgramFailed("it ended with exit code 3", 3), ProgramFailed("x", 1)), 3),
        (failed(errors.TaskKilled("x", exit_code=4)), 4),
        (failed(errors.TaskKilled("x", exit_code=0)), 1),
        (failed(errors.TaskKilled("x", signal=11)), 139),
        (failed(errors.TaskKilled("x", signal=9, out_of_memory=True)), 137),
        (failed(errors.TaskTimeout("x")), 124),
        (failed(errors.TaskFailed("could not be sent")), 125),
        (errors.SpecError("x"), 2),
        (errors.CapacityError("x"), 125),
        (errors.NodeLost("x"), 125),
        (KeyboardInterrupt(), 130),
        (errors.RunStopped("x"), 143),
        (SystemExit(129), 129),
    ],
    ids=repr,
)
def test_the_rank_that_failed_first_decides(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_a_programs_failure_comes_from_its_node_as_it_is() -> None:
    again = pickle.loads(pickle.dumps(ProgramFailed("LookupError: no", 7)))
    assert (type(again), str(again), again.code) == (ProgramFailed, "LookupError: no", 7)
