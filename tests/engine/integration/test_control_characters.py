"""Text that a host sends reaches no terminal with control characters, whatever it is part of."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import traceback
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import fields
from typing import Any

import asyncssh
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.actors.interfaces import (
    AttemptId,
    ConnectFailed,
    GaveUp,
    JobId,
    NodeFacts,
    NodeId,
    Order,
    Reason,
    Task,
    TaskId,
)
from outrider.engine.api import errors
from outrider.engine.api.printable import plainly
from outrider.engine.client.observer import completed
from outrider.engine.image.commands import CommandResult
from outrider.engine.image.hints import bootstrap_error
from outrider.engine.objects.blob_transfers import TransferProgress
from outrider.engine.record.display.descriptions import describe
from outrider.engine.record.display.pool_view import PoolView
from outrider.engine.record.display.prints import marked
from outrider.engine.record.display.table import View, summary
from outrider.engine.serialization import error_notes, error_translation
from outrider.engine.serialization.payload import Received
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.serialization.versions import version_mismatch
from outrider.engine.transport import requirement_check, ssh, ssh_route
from outrider.engine.transport.channels import Control, Receiving
from outrider.engine.transport.connection import NodeConnection
from outrider.engine.transport.instance_views import InstanceViews
from outrider.engine.transport.link import NodeLink
from outrider.engine.transport.login import JumpFailed, Stop, ssh_refusal
from outrider.engine.transport.memory_checkpoints import MemoryCheckpoints
from outrider.engine.transport.ssh import RemoteShell
from outrider.engine.transport.ssh_route import SSHRoute
from outrider.engine.transport.task_output import PrintedLines, TaskLogs
from outrider.engine.wire.messages import LOST, Cause, Ended, Failed, Get, Value
from outrider.engine.wire.session import Session
from outrider.providers import errors as providers
from outrider.providers.base import AcceleratorRequest, Machine, MachineId

PLACE = error_translation.AttemptPlace("train", 0)
BIDI = {"\u061c", "\u200e", "\u200f", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
CONTROL = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *BIDI}
ATTACKS = (
    "\x1b]0;title\x07",
    "\x1b[2J",
    "\x9b31m",
    "\x1b",
    "\x07",
    "\x08" * 9,
    "\r",
    "\r\n",
    "\u202e",
    "\x90q\x9c",
    "\x00",
)
hostile = st.lists(st.sampled_from([*ATTACKS, *CONTROL, "\n", "\t"]) | st.text(max_size=5), max_size=12).map("".join)


def controls(text: object, allowed: str = "\n\t") -> list[str]:
    return [character for character in str(text) if character in CONTROL and character not in allowed]


def texts(value: object) -> Iterator[str]:
    """All that are in it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple | dict):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from texts(each)


def of_type(said: str) -> st.SearchStrategy[Any]:  # noqa: PLR0911 - a table
    """Values of a field's annotation."""
    match said:
        case "str":
            return hostile
        case "int" | "int | None":
            return st.integers(0, 99)
        case "float" | "float | None":
            return st.floats(0, 1e6)
        case "bool":
            return st.booleans()
        case "tuple[str, ...]":
            return st.lists(hostile, max_size=3).map(tuple)
        case "tuple[int, ...]":
            return st.lists(st.integers(0, 9), max_size=3).map(tuple)
        case "Mapping[str, str]":
            return st.dictionaries(hostile, hostile, max_size=3)
        case "tuple[tuple[str, str, str], ...]":
            return st.lists(st.tuples(hostile, hostile, hostile), max_size=3).map(tuple)
        case "tuple[GpuSample, ...]":
            gpu = st.builds(ev.GpuSample, st.integers(0, 9), st.floats(0, 1), st.integers(0), st.integers(0), st.none())
            return st.lists(gpu, max_size=3).map(tuple)
        case _:
            raise AssertionError(f"nobody has said how to make a {said}")


def event_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({each.name: of_type(str(each.type)) for each in fields(kind)})


# --- events -----------------------------------------------------------------------------------------------------------


EVENTS = [kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event)]


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_what_is_told_of_an_event_has_none(kind: type[Any], data: st.DataObject) -> None:
    facts = data.draw(event_of(kind))
    event = kind(**facts)
    assert controls(describe(event) or "") == []
    if isinstance(event, ev.TaskOutput):
        assert controls(marked(event)) == []
    else:
        seen = completed(event, 1.0, {})  # as `pool.events()` gives it
        assert [each for fact in fields(seen) for each in texts(getattr(seen, fact.name)) if controls(each)] == []


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_the_live_table_has_none(data: st.DataObject) -> None:
    from rich.console import Console

    pool_view = PoolView()
    kinds = [
        ev.PoolStarting,
        ev.NodeLaunching,
        ev.NodePreparing,
        ev.NodeReady,
        ev.NodeSuspect,
        ev.TaskStarted,
        ev.NodeLost,
    ]
    for kind in kinds:
        pool_view.apply(
            kind(**data.draw(event_of(kind)) | ({"node": 0} if "node" in kind.__dataclass_fields__ else {}))
        )
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(View(pool_view, 1.0), summary(pool_view, 1.0))
    assert controls(captured.get()) == []


# --- errors -----------------------------------------------------------------------------------------------------------


def kinds_of(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(each for below in kind.__subclasses__() for each in kinds_of(below))]


def shown(error: BaseException) -> list[str]:
    """All that a program or a person gets of it, and of what it came from."""
    found = [str(error), *texts(error.args), *texts(list(vars(error).values()))]
    return [*found, *(shown(error.__cause__) if error.__cause__ is not None else [])]


def clean(error: BaseException, note: str = "") -> bool:
    error.add_note(note)
    return not any(map(controls, [*shown(error), "".join(traceback.format_exception(error))]))


@pytest.mark.parametrize("kind", sorted(set(kinds_of(errors.OutriderError)), key=lambda kind: kind.__name__))
@settings(max_examples=15, deadline=None)
@given(text=hostile)
def test_no_error_of_ours_has_any(kind: type[Exception], text: str) -> None:
    """Whoever makes it, and of whatever: all its texts, and what is set on it later."""
    options = {
        name: [(text, text, text)] if "Sequence" in str(each.annotation) else text
        for name, each in inspect.signature(kind.__init__).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY and ("str" in str(each.annotation))
    }
    positional = (text, [ValueError("x")]) if issubclass(kind, ExceptionGroup) else (text,)
    error = kind(*positional, **options)
    error.later = text  # type: ignore[attr-defined]
    assert clean(error, text)


def failures(text: str) -> Iterator[BaseException]:
    """Each error that is made of what hosts said, by the code that makes it."""
    for phase in ("call", "load", "dump", "fetch", "send"):
        yield error_translation.failed_error(Failed(1, phase, text, text, text, None, 1, text), PLACE, None)
        yield error_translation.failed_error(Failed(1, phase, text, text, text, None, 1, text), PLACE, lambda: 1 / 0)
    for cause in Cause:
        yield error_translation.ended_error(Ended(1, cause, 9, text), PLACE)
    for reason in Reason:
        yield error_translation.gave_up_error(GaveUp(reason, ((0, text),), 0), text)  # type: ignore[arg-type]
    for kind in kinds_of(providers.ProviderError):
        if kind.__module__ == providers.__name__:
            yield error_translation.provider_error(kind(text))
    yield error_notes.pickling_error(ValueError(text), "train", "it")
    yield error_notes.unloadable_error(ValueError(text), f"The result of {PLACE}", PLACE.task)
    yield bootstrap_error("apt", text, command=text, log=[text], hint=text)
    yield bootstrap_error("apt", text, command=text, log=[text]).at(text, 0)
    yield ssh_route._failed("it", CommandResult(1, None, b"", text.encode("utf-8", "replace")), Machine(text, None, ""))
    yield version_mismatch(text, {"Python": "3.11"}, {"Python": text})
    facts = NodeFacts(text, text, (), ((text, 1.0),))
    yield requirement_check.too_small(facts, {"cpus": 0}, requirement_check.Wanted(vcpus=1)) or ValueError(text)
    wanted = requirement_check.Wanted(AcceleratorRequest("A100", 1))
    yield requirement_check.too_small(facts, {}, wanted) or ValueError(text)
    yield error_translation.pool_error(ConnectFailed(text), "unstarted")


@settings(max_examples=25, deadline=None)
@given(text=hostile)
def test_nor_has_any_that_is_made_of_what_hosts_said(text: str) -> None:
    assert [error for error in failures(text) if not clean(error)] == []


@pytest.mark.parametrize("kept", [None, ["before \x1b[2J"]])
def test_an_error_keeps_all_of_its_notes(kept: list[str] | None) -> None:
    """The first one, too: `BaseException.add_note` appends to the list that it has just set."""
    error = errors.OutriderError("it failed")
    if kept is not None:
        error.__notes__ = kept
    error.add_note("first")
    error.add_note("second")
    assert error.__notes__ == [*(["before "] if kept else []), "first", "second"]


async def caught(work: Awaitable[object]) -> BaseException:
    try:
        await work
    except Exception as error:  # noqa: BLE001  whatever it is
        return error
    raise AssertionError("it should have raised")


async def of(work: Callable[[], object]) -> object:
    return work()


async def thrown(error: Exception) -> None:
    raise error


def unpickled(text: str) -> Received:
    """What runs code of the sender's choice: an error that it makes itself."""
    data = pickle.dumps(Raises(text))
    return Received(data, None, 0.0)


class Raises:
    def __init__(self, text: str) -> None:
        self.text = text

    def __reduce__(self) -> tuple[object, ...]:
        return os.listdir, (self.text.replace("\0", "") or "\x1b",)


class Hostile:
    """An SSH connection whose other side answers each channel with a text of its own."""

    def __init__(self, text: str) -> None:
        self._error = asyncssh.ChannelOpenError(1, text)

    async def create_session(self, *_: object, **__: object) -> None:
        raise self._error

    def is_closed(self) -> bool:
        return True

    open_session = create_session

    async def create_unix_connection(self, *_: object, **__: object) -> None:
        raise self._error


async def raised(text: str) -> list[BaseException]:
    """Each error of ours that is raised while one of a library's is handled, or with what a node said as its cause."""
    wrong = "\x1b" + text.replace("\0", "")
    bulk, payload = Hostile(text), Payload("train", b"", b"", Value(b"", None))
    node = NodeLink(
        NodeId(0), Session(), machine=MachineId("0"), views=InstanceViews("pool", 1), checkpoints=MemoryCheckpoints(),
        same_host=False, bulk=bulk,  # type: ignore[arg-type]
        reports=lambda _: None, prints=PrintedLines(lambda _: None), logs=TaskLogs(lambda: None),
    )  # fmt: skip
    order = Order(AttemptId(1), Task(TaskId(1), JobId(1), b"", payload, None, 3, False, None), 1)
    connection, route = NodeConnection.__new__(NodeConnection), SSHRoute.__new__(SSHRoute)
    route._ssh, route._bridged = ssh.Connected(Hostile(text)), False  # type: ignore[arg-type]
    route._executor, route._machine = None, Machine("0", None, "")  # type: ignore[arg-type]
    connection._route = route
    channel, transfer = Control(), Receiving(TransferProgress(1))
    channel.connection_lost(asyncssh.ConnectionLost(text))
    transfer.connection_lost(asyncssh.ConnectionLost(text))
    lost = JumpFailed(Stop("it", 22, None, None))  # type: ignore[arg-type]
    lost.__cause__ = asyncssh.ConnectionLost(text)
    completed = [
        await ssh_refusal(Machine("0", None, ""), error)  # type: ignore[arg-type]
        for error in (asyncssh.ConnectionLost(text), asyncssh.PermissionDenied(text), OSError(1, wrong), lost)
    ]
    return [
        await caught(node._streams.bring(order, Value(b"", None, LOST + text))),
        await caught(RemoteShell(Hostile(text)).run(["true"])),  # type: ignore[arg-type]
        await caught(connection._transfer(transfer, Get("name"))),
        await caught(channel.first),
        await caught(transfer.done),
        *[await caught(thrown(error_translation.pool_error(failed, "unstarted"))) for failed in completed],
        *[error for failed in completed if (error := failed.__cause__) is not None],
        await caught(of(lambda: error_translation.load_value(unpickled(wrong), payload.name))),
    ]


@settings(max_examples=25, deadline=None)
@given(text=hostile)
def test_nor_has_what_they_were_raised_from(text: str) -> None:
    """As a traceback shows them, with all causes."""
    assert [error for error in asyncio.run(raised(text)) if not clean(error)] == []


def test_a_chain_of_errors_is_cleaned_to_its_end() -> None:
    first, group = OSError(1, "a\x1b[2Jb"), ExceptionGroup("all", [ValueError("c\x07")])
    first.__context__, group.__cause__ = group, first  # a circle, as handlers that raise an old error make it
    group.add_note("d\x08")
    assert clean(plainly(first))
    assert [first.strerror, group.exceptions[0].args, group.__notes__[0]] == ["ab", ("c",), "d"]


@given(text=hostile)
def test_what_we_add_to_the_users_own_error_has_none(text: str) -> None:
    """Its own arguments are the user's objects, and come as they are."""
    raised = ValueError("mine")
    raised.add_note(text)
    error = error_translation.failed_error(
        Failed(1, "call", "ValueError", text, text, None, 1, ""), PLACE, lambda: raised
    )
    assert error is raised
    assert not any(map(controls, [*error.__notes__, *shown(error)]))


def test_an_errors_line_breaks_and_tabs_stay() -> None:
    assert str(errors.OutriderError("one\n\ttwo\r\nthree\rfour")) == "one\n\ttwo\nthreefour"


def test_notes_of_megabytes_are_cut() -> None:
    raised = ValueError("mine")
    raised.add_note("begin" + "x" * 1_000_000 + "end")
    error = error_translation.failed_error(Failed(1, "call", "ValueError", "", "", None, 1, ""), PLACE, lambda: raised)
    assert error.__notes__[0].startswith("begin")
    assert error.__notes__[0].endswith("end")
    assert "934,472 characters are left out here" in error.__notes__[0]
