"""How attempts ended, as nodes and the ledger say it, becomes what users catch."""

import asyncio
import pickle
import traceback
from functools import partial

import pytest

from outrider import errors
from outrider.actors.interfaces import ConnectFailed, GaveUp, NodeId, QueuedTooLong, Reason, Settled, Verdict
from outrider.engine.api.errors import (
    BroadcastFailed,
    CapacityError,
    NodeLost,
    Outcome,
    RemoteTraceback,
    SerializationError,
    TaskFailed,
)
from outrider.engine.api.tracebacks import remote_traceback
from outrider.engine.serialization.error_notes import AttemptPlace, pickling_error, unloadable_error
from outrider.engine.serialization.error_translation import (
    broadcast_error,
    ended_error,
    failed_error,
    gave_up_error,
    not_ready_error,
    pool_error,
    provider_error,
    unpack_all,
)
from outrider.engine.serialization.payload import Received
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.wire import values
from outrider.engine.wire.messages import Cause, Ended, Failed, Value
from outrider.engine.wire.values import Unpicklable
from outrider.providers.errors import (
    BadRequest,
    JournalError,
    NoCapacity,
    NotAuthorized,
    ProviderError,
    QuotaExceeded,
    Unreachable,
)

PLACE = AttemptPlace("train", node=4, rank=2, attempt=3)
FRAMES = 'Traceback (most recent call last):\n  File "train.py", line 3, in train\nValueError: bad epoch\n'


def failed(error: BaseException, phase: str = "call") -> Failed:
    kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
    return Failed(1, phase, kind, str(error), FRAMES, None, 10)


def raised(error: BaseException) -> Exception:
    return failed_error(failed(error), PLACE, partial(pickle.loads, pickle.dumps(error)))


class Ranked(Exception):
    """Has an idea of its own of what a rank is."""

    @property
    def rank(self) -> str:
        return "general"


class Frozen(Exception):
    """Takes no attributes of others."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class NeedsTwo(Exception):
    """Pickles, but cannot be unpickled, as so many exceptions in the wild."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def test_an_exception_comes_back_as_itself_with_where_it_happened() -> None:
    error = raised(ValueError("bad epoch"))

    assert type(error) is ValueError
    assert (error.node, error.rank, error.attempt) == (4, 2, 3)  # type: ignore[attr-defined]
    assert error.__notes__ == [f"train on node 4 (rank 2, attempt 3), traceback there:\n{FRAMES.rstrip()}"]
    assert isinstance(error.__cause__, RemoteTraceback)
    assert error.__cause__.text == FRAMES.rstrip()


def test_the_remote_frames_are_printed_once_and_last() -> None:
    printed = "".join(traceback.format_exception(raised(ValueError("bad epoch"))))

    assert printed.count("train.py") == 1
    assert printed.rstrip().endswith("ValueError: bad epoch")


def with_cause(error: Exception, cause: BaseException) -> Exception:
    error.__cause__ = cause
    return failed_error(failed(error), PLACE, lambda: error)


def test_remote_traceback_is_the_last_cause() -> None:
    cause = KeyError("inner")
    cause.add_note("a note with \x1b[31mcolour")
    error = with_cause(ValueError("outer"), cause)

    assert (error.__cause__, cause.__notes__) == (cause, ["a note with colour"])
    assert remote_traceback(error) is cause.__cause__
    assert isinstance(cause.__cause__, RemoteTraceback)
    assert remote_traceback(cause.__cause__) is None


def test_causes_in_a_circle_end_with_the_remote_traceback() -> None:
    cause = KeyError("inner")
    cause.__cause__ = error = ValueError("outer")

    assert remote_traceback(with_cause(error, cause)) is cause.__cause__


def test_remote_traceback_of_an_inner_pool_is_replaced() -> None:
    error = with_cause(ValueError("outer"), RemoteTraceback("raised in inner", "frames of inner"))

    assert isinstance(error.__cause__, RemoteTraceback)
    assert error.__cause__.text == FRAMES.rstrip()
    assert isinstance(raised(RemoteTraceback("raised in inner")).__cause__, RemoteTraceback)


def test_ranks_with_equal_errors_keep_their_causes() -> None:
    errors_ = [with_cause(ValueError(f"port {port}"), KeyError("inner")) for port in (1, 2)]
    broadcast_error("train", [Outcome(rank, rank, error) for rank, error in enumerate(errors_)], [0.0, 0.1])

    assert [repr(error.__cause__) for error in errors_] == ["KeyError('inner')"] * 2
    assert [remote_traceback(error) is None for error in errors_] == [False, True]


def test_notes_of_the_users_own_are_kept() -> None:
    original = ValueError("bad epoch")
    original.add_note("epoch was -1")

    assert raised(original).__notes__[0] == "epoch was -1"


def test_a_frozen_exception_gets_its_place_all_the_same() -> None:
    error = raised(Frozen("x"))
    assert type(error) is Frozen
    assert (error.node, error.attempt) == (4, 3)  # type: ignore[attr-defined]
    assert error.__notes__
    assert error.__cause__


def test_an_attribute_that_cannot_be_set_is_left_alone() -> None:
    error = raised(Ranked("x"))
    assert (error.rank, error.node) == ("general", 4)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), StopIteration(1), GeneratorExit()], ids=repr
)
def test_what_would_end_the_caller_instead_of_telling_it_is_wrapped(error: BaseException) -> None:
    got = raised(error)

    assert isinstance(got, TaskFailed)
    assert type(error).__name__ in got.kind
    assert type(error).__name__ in str(got)


def test_an_exception_that_cannot_be_unpickled_names_type_module_and_versions() -> None:
    got = raised(NeedsTwo(1, 2))

    assert isinstance(got, TaskFailed)
    assert got.kind.endswith(".NeedsTwo")
    assert "1 and 2" in str(got)
    assert "missing 1 required positional argument" in str(got)
    assert got.versions
    assert all(len(row) == 3 for row in got.versions)
    assert got.traceback == FRAMES
    assert "traceback there" in got.__notes__[0]


def test_an_exception_that_could_not_be_pickled_there_is_named() -> None:
    got = failed_error(failed(ValueError("holds a lock")), PLACE, None)

    assert isinstance(got, TaskFailed)
    assert (got.kind, got.node) == ("ValueError", 4)
    assert "cannot be pickled" in str(got)


def test_arguments_that_cannot_be_unpickled_there_are_a_serialization_error() -> None:
    got = failed_error(failed(ModuleNotFoundError("No module named 'foo'"), "load"), PLACE, None)

    assert isinstance(got, SerializationError)
    assert "No module named 'foo'" in str(got)
    assert "Image(pip=[...])" in str(got)


@pytest.mark.parametrize("phase", ["send", "fetch"])
def test_large_data_that_does_not_get_through_says_what_either_end_may_lack(phase: str) -> None:
    got = failed_error(failed(RuntimeError("it was begun 8 times"), phase), PLACE, None)
    assert isinstance(got, TaskFailed)
    assert "it was begun 8 times. See whether this computer and the node have memory and file descriptors left" in str(
        got
    )


def test_a_result_that_cannot_be_pickled_says_where_in_it() -> None:
    reported = Unpicklable("result['model'].lock", "_thread.lock", "cannot pickle '_thread.lock' object")
    got = failed_error(failed(reported, "dump"), PLACE, lambda: reported)

    assert isinstance(got, SerializationError)
    assert (got.path, got.kind) == ("result['model'].lock", "_thread.lock")
    assert str(got).count("cannot be pickled") == 1


def test_arguments_that_cannot_be_pickled_here_say_where() -> None:
    reported = Unpicklable("args[0]['lock']", "_thread.lock", "cannot pickle '_thread.lock' object")
    got = pickling_error(reported, "train", "an argument")

    assert str(got) == (
        "args[0]['lock'] of train cannot be pickled (cannot pickle '_thread.lock' object): "
        "leave it out, or make it inside the function."
    )


def test_a_result_that_cannot_be_unpickled_here_is_explained() -> None:
    got = unloadable_error(ModuleNotFoundError("No module named 'foo'"), f"The result of {PLACE}", PLACE.task)
    assert "importable on both sides" in str(got)


@pytest.mark.parametrize(
    ("ended", "kind", "said"),
    [
        (Ended(1, Cause.TIMEOUT, 0, ""), errors.TaskTimeout, "its timeout of 5 s"),
        (Ended(1, Cause.EXIT, 3, ""), errors.TaskKilled, "exit status 3"),
        (Ended(1, Cause.SIGNAL, 11, ""), errors.TaskKilled, "SIGSEGV: native code"),
        (Ended(1, Cause.SIGNAL, 9, ""), errors.TaskKilled, "SIGKILL, which somebody"),
        (Ended(1, Cause.SIGNAL, 63, ""), errors.TaskKilled, "signal 63"),
        (Ended(1, Cause.SIGNAL, 9, "with another"), errors.TaskKilled, "SIGKILL; with another."),
        (Ended(1, Cause.SIGNAL, 11, "it goes on"), errors.TaskKilled, "task crashed; it goes on."),
        (Ended(1, Cause.TIMEOUT, 0, "it goes on"), errors.TaskTimeout, "less to do; it goes on."),
        (Ended(1, Cause.EXIT, 3, "it goes on"), errors.TaskKilled, "or raising; it goes on."),
        (Ended(1, Cause.MEMORY, 9, ""), errors.TaskKilled, "out of memory"),
        (Ended(1, Cause.KILLED, 9, ""), errors.TaskStopped, "stopped by the pool"),
    ],
)
def test_each_end_has_its_error(ended: Ended, kind: type[errors.TaskError], said: str) -> None:
    error = ended_error(ended, PLACE, 5.0)

    assert type(error) is kind
    assert said in str(error)
    assert (error.task, error.node, error.rank, error.attempt) == ("train", 4, 2, 3)


def test_facts_of_an_end_are_attributes() -> None:
    exited = ended_error(Ended(1, Cause.EXIT, 3, ""), PLACE)
    killed = ended_error(Ended(1, Cause.SIGNAL, 11, ""), PLACE)
    starved = ended_error(Ended(1, Cause.MEMORY, 9, ""), PLACE)
    assert isinstance(exited, errors.TaskKilled)
    assert isinstance(killed, errors.TaskKilled)
    assert isinstance(starved, errors.TaskKilled)
    assert (exited.exit_code, killed.signal, starved.out_of_memory) == (3, 11, True)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (Reason.LOST, errors.NodeLost),
        (Reason.QUARANTINED, errors.TaskQuarantined),
        (Reason.LOSING, errors.NodeLost),
        (Reason.QUEUE_TIMEOUT, errors.QueueTimeout),
        (Reason.DEADLINE, errors.DeadlineExceeded),
        (Reason.CANCELLED, errors.TaskStopped),
        (Reason.CLOSED, errors.PoolClosed),
        (Reason.NO_REPLACEMENT, errors.CapacityError),
        (Reason.NO_SUCH_RANK, errors.CapacityError),
        (Reason.NO_PORTS, errors.CapacityError),
    ],
)
def test_each_reason_to_give_up_has_its_error(reason: Reason, kind: type[Exception]) -> None:
    error = gave_up_error(GaveUp(reason, ((NodeId(3), "killed by signal 9"),), rank=1), "train", queue_timeout_s=2)

    assert type(error) is kind
    assert "train" in str(error)
    if isinstance(error, errors.NodeLost):
        assert error.losses == ((3, "killed by signal 9"),)
        assert "node 3: killed by signal 9" in str(error)


def test_deadline_says_where_the_call_was() -> None:
    ending = GaveUp(Reason.DEADLINE, why="it was running on node 3", limit_s=30.0)
    error = gave_up_error(ending, "train")
    assert isinstance(error, errors.DeadlineExceeded)
    assert isinstance(error, TimeoutError)
    assert (error.deadline_s, error.where) == (30.0, "it was running on node 3")
    assert str(error).startswith("train was not done at its deadline of 30 s and was ended: it was running on node 3.")


def test_deadline_of_a_broadcast_gives_way_to_a_rank_that_failed() -> None:
    late = GaveUp(Reason.DEADLINE, rank=1, why="rank 1 on node 1 had not ended", limit_s=30.0)
    done = Settled(Verdict.RETURNED, Received(b"", None), NodeId(0), 0, 1, 1)
    failed = Settled(Verdict.DIED, Ended(1, Cause.EXIT, 3, ""), NodeId(0), 0, 1, 1)
    with pytest.raises(errors.DeadlineExceeded) as raised:
        unpack_all([done, late], PAYLOAD)
    assert [type(each.error) for each in raised.value.outcomes] == [type(None), errors.DeadlineExceeded]
    with pytest.raises(errors.BroadcastFailed) as group:
        unpack_all([failed, late], PAYLOAD)
    assert group.value.first.rank == 0


WRONG_KEY = ConnectFailed("h1 shows another host key.", systematic=True)
WRONG_KEY.__cause__ = errors.HostKeyError("h1 shows another host key.")


def test_a_node_that_was_being_prepared_when_its_time_was_over_is_an_error_of_its_image() -> None:
    failed = ConnectFailed("not ready within 60 s: it answered, and apt had taken 41 s")
    failed.step = "apt"
    failed.__notes__ = ["Of 2 nodes, ..."]
    error = pool_error(failed, "unstarted")
    assert isinstance(error, errors.BootstrapError)
    assert error.phase == "apt"
    assert str(error).endswith("apt had taken 41 s. Give nodes longer by Pool(boot_timeout=...), or less to install.")
    assert error.__notes__ == ["Of 2 nodes, ..."]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (WRONG_KEY, errors.HostKeyError),
        (ConnectFailed("no route to host"), errors.ConnectionLost),
        (NotAuthorized("no credentials"), errors.AuthError),
    ],
)
def test_a_call_without_a_node_is_raised_from_what_kept_the_last_one(failure: Exception, kind: type[Exception]) -> None:
    error = gave_up_error(GaveUp(Reason.NO_REPLACEMENT, failure=failure), "train")

    assert type(error) is errors.CapacityError
    assert type(error.__cause__) is kind
    assert str(failure).rstrip(".") in str(error)
    assert str(failure).rstrip(".") in str(error.__cause__)


@pytest.mark.parametrize(
    ("failed", "story"),
    [
        (None, "1 of the 4 nodes that the pool needs were ready within 30 s, and none has failed: give them longer,"),
        (RuntimeError("the node's actor failed"), "the node's actor failed"),
    ],
)
def test_a_pool_that_is_not_ready_has_too_few_nodes_whatever_kept_them(failed: Exception | None, story: str) -> None:
    error = not_ready_error(failed, 1, 4, 30.0)
    assert type(error) is errors.CapacityError
    assert str(error).startswith(story)
    assert (error.wanted, error.got) == (4, 1)


def outcomes(*given: Exception | None) -> list[Outcome]:
    return [Outcome(rank, rank, error, (lambda: 1) if error is None else None) for rank, error in enumerate(given)]


def test_ranks_that_were_only_stopped_stay_out_of_the_group() -> None:
    cause, stopped = ValueError("x"), errors.TaskStopped("stopped")
    error = broadcast_error("train", outcomes(None, cause, stopped), [0.0, 1.0, 2.0])

    assert error.exceptions == (cause,)
    assert error.message == "train failed on rank 1 of 3: ValueError: x"
    assert error.first is error.outcomes[1]
    assert error.outcomes[2].error is stopped


def test_a_group_of_stopped_ranks_alone_is_a_group_still() -> None:
    both = outcomes(errors.TaskStopped("a"), errors.TaskStopped("b"))
    assert len(broadcast_error("train", both, [0.0, 0.0]).exceptions) == 2


def ended(rank: int, code: int, at: float, ago_s: float = 0.0) -> Settled:
    return Settled(Verdict.DIED, Ended(1, Cause.EXIT, code, "", int(ago_s * 1e6)), NodeId(rank), rank, 1, 1, at)


def rank_raised(rank: int, at: float, message: str = "no", ago_s: float = 0.0) -> Settled:
    line = 'Traceback:\n  File "t.py", line 3, in train\nRuntimeError: ' + message
    failed = Failed(1, "call", "RuntimeError", message, line, None, 0, "", int(ago_s * 1e6))
    return Settled(Verdict.RAISED, (failed, None), NodeId(rank), rank, 1, 1, at)


def test_the_rank_that_failed_first_by_its_nodes_knowledge_leads() -> None:
    with pytest.raises(BroadcastFailed) as caught:
        unpack_all([ended(0, 1, at=10.0), ended(1, 3, at=10.3, ago_s=0.5), returned("good", 2)], PAYLOAD)
    error = caught.value
    assert error.first.rank == 1
    assert error.exceptions[0] is error.first.error
    assert error.message == (
        f"{PAYLOAD.name} failed on rank 1 of 3: it ended its process with exit status 3 instead of returning or "
        "raising; 1 rank followed within 0.2 s (rank 0)"
    )


def test_ranks_that_lost_it_as_their_peer_follow_and_are_told_once() -> None:
    closed = "Connection closed by peer [127.0.0.1]:"
    endings = [rank_raised(0, 9.9, f"{closed}311"), ended(1, 3, at=10.0), rank_raised(2, 9.95, f"{closed}4711")]
    with pytest.raises(BroadcastFailed) as caught:
        unpack_all(endings, PAYLOAD)
    error = caught.value
    assert error.first.rank == 1
    assert error.message.endswith("; 2 ranks followed within 0.1 s (ranks 0, 2)")
    _, zero, two = error.exceptions
    assert zero.__notes__[-1] == "The same on rank 2."
    assert two.__notes__ == ["On rank 2. Rank 0 has the traceback of the same."]


@pytest.mark.parametrize(
    ("raised_below", "kind"),
    [
        (NoCapacity("no A100"), errors.CapacityError),
        (QuotaExceeded("8 vCPU"), errors.QuotaError),
        (NotAuthorized("expired"), errors.AuthError),
        (BadRequest("no such zone"), errors.SpecError),
        (JournalError("no space left"), errors.OutriderError),
        (Unreachable("no network"), errors.NetworkError),
        (ProviderError("500"), errors.CapacityError),
    ],
)
def test_each_failure_of_a_provider_has_its_error(raised_below: ProviderError, kind: type[Exception]) -> None:
    error = provider_error(raised_below)
    assert type(error) is kind
    assert str(raised_below) in str(error)


# --- what the caller of a broadcast gets ------------------------------------------------------------------------------

PAYLOAD = Payload("train", b"digest", b"code", Value(b""))


def returned(value: object, rank: int) -> Settled:
    dumped = values.inline(values.dump(value))
    return Settled(Verdict.RETURNED, Received(dumped.data, dumped.sizes), NodeId(rank), rank, 1, 1)


def lost(reason: Reason, rank: int) -> GaveUp:
    return GaveUp(reason, ((NodeId(rank), "gone"),), rank)


def test_values_come_by_rank() -> None:
    assert unpack_all([returned(rank, rank) for rank in range(3)], PAYLOAD) == [0, 1, 2]


@pytest.mark.parametrize(
    ("reason", "kind"), [(Reason.LOST, NodeLost), (Reason.LOSING, NodeLost), (Reason.NO_REPLACEMENT, CapacityError)]
)
@pytest.mark.parametrize("failed_too", [False, True])
def test_ranks_that_were_lost_are_the_error_and_the_others_are_on_it(
    reason: Reason, kind: type[NodeLost | CapacityError], failed_too: bool
) -> None:
    exited = Settled(Verdict.DIED, Ended(1, Cause.EXIT, 3, ""), NodeId(2), 2, 1, 1)
    with pytest.raises(kind) as caught:
        unpack_all([returned("good", 0), lost(reason, 1), exited if failed_too else returned("well", 2)], PAYLOAD)
    good, gone, third = caught.value.outcomes
    assert (good.result(), gone.error, third.error is None) == ("good", caught.value, not failed_too)


def test_without_any_the_failures_are_a_group() -> None:
    exited = Settled(Verdict.DIED, Ended(1, Cause.EXIT, 3, ""), NodeId(1), 1, 1, 1)
    with pytest.raises(BroadcastFailed) as caught:
        unpack_all([returned("good", 0), exited], PAYLOAD)
    assert caught.value.outcomes[0].result() == "good"


def test_a_wait_in_the_providers_queue_that_was_too_long_says_for_what_and_what_to_do() -> None:
    error = pool_error(QueuedTooLong("job 4711 pending: Priority", 300.0, 86400.0 * 20000), "unstarted")

    assert type(error) is errors.StartTimeout
    assert isinstance(error, errors.CapacityError)
    assert isinstance(error, TimeoutError)
    assert (error.reason, error.limit_s, error.starts_at) == ("job 4711 pending: Priority", 300.0, 86400.0 * 20000)
    assert "for 300 s, the pool's start_timeout" in str(error)
    assert "job 4711 pending: Priority, expected to start at 2024-10-0" in str(error)
    assert "Pool(start_timeout=...)" in str(error)
    unknown = pool_error(QueuedTooLong("busy", 300.0, None), "unstarted")
    assert "expected" not in str(unknown)
