"""The public errors: catchable as what they are, readable, picklable."""

import copy
import inspect
import pickle

import pytest

import outrider
from outrider import BroadcastFailed, NodeLost, Outcome, OutriderError, SpecError, TaskFailed, errors

ALL = [each for each in vars(errors).values() if inspect.isclass(each) and issubclass(each, OutriderError)]


def test_every_error_is_public() -> None:
    assert {each.__name__ for each in ALL} <= set(outrider.__all__)


@pytest.mark.parametrize("kind", [each for each in ALL if each is not BroadcastFailed], ids=lambda kind: kind.__name__)
def test_errors_survive_pickling_with_their_facts(kind: type[OutriderError]) -> None:
    error = kind("what happened")
    for name, value in vars(error).items():
        setattr(error, name, value or "a fact")
    error.add_note("a note")

    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), vars(again)) == (kind, "what happened", vars(error))


def test_errors_can_be_caught_as_what_python_calls_them() -> None:
    assert issubclass(SpecError, ValueError)
    assert issubclass(errors.NotACall, TypeError)
    assert issubclass(errors.TaskTimeout, TimeoutError)
    assert issubclass(errors.QueueTimeout, TimeoutError)
    assert issubclass(errors.QuotaError, errors.CapacityError)


def ranked(rank: int, error: Exception) -> Exception:
    error.rank = rank  # type: ignore[attr-defined]
    return error


def broken_broadcast() -> BroadcastFailed:
    failures = [ranked(0, ValueError("zero")), ranked(2, KeyError("two"))]
    outcomes = [
        Outcome(0, 10, failures[0]),
        Outcome(1, 11, None, load=lambda: "fine"),
        Outcome(2, 12, failures[1]),
    ]
    return BroadcastFailed("train failed on ranks 0, 2 of 3", failures, outcomes)


def test_a_broken_broadcast_is_a_group_with_every_ranks_outcome() -> None:
    error = broken_broadcast()

    assert [getattr(each, "rank", None) for each in error.exceptions] == [0, 2]
    assert error.outcomes[1].result() == "fine"
    with pytest.raises(KeyError, match="two"):
        error.outcomes[2].result()
    assert isinstance(error, OutriderError)


def test_except_star_and_subgroup_keep_the_outcomes() -> None:
    caught: list[BroadcastFailed] = []
    try:
        raise broken_broadcast()
    except* KeyError as group:
        caught.append(group)  # type: ignore[arg-type]
    except* ValueError:
        pass

    assert isinstance(caught[0], BroadcastFailed)
    assert [type(each) for each in caught[0].exceptions] == [KeyError]
    assert len(caught[0].outcomes) == 3
    assert caught[0].first.rank == 0  # though it is not in this part of the group


def test_a_broken_broadcast_can_be_pickled_without_the_values_that_were_not_asked_for() -> None:
    again = pickle.loads(pickle.dumps(broken_broadcast()))

    assert [str(each) for each in again.exceptions] == ["zero", "'two'"]
    assert again.outcomes == ()
    assert (again.first.rank, str(again.first.error)) == (0, "zero")
    assert copy.copy(broken_broadcast()).message == "train failed on ranks 0, 2 of 3"


def test_messages_are_sentences_with_facts_as_attributes() -> None:
    error = TaskFailed("train raised X", task="train", node=1, rank=2, attempt=3, kind="a.X", traceback="...")
    assert (error.task, error.node, error.rank, error.attempt, error.kind) == ("train", 1, 2, 3, "a.X")
    assert NodeLost("lost", losses=[(1, "gone")]).losses == ((1, "gone"),)
