"""What a life may have come to, given what befell it. Pure: from the journal and what was found to what is wrong.

1. Every call settles in a bounded time, at its caller, once.
2. A value is the right one.
3. An error is one that the faults of this life account for.
4. A task of ``retry="never"`` begins at most once.
5. The client ends as it was told to, in a bounded time.
6. Afterwards nothing is left: processes and files; in the client threads, tasks and descriptors.
7. When the faults are over, the pool works.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from .journal import Entry
from .plan import CLIENT_LIMIT, FINISH, INTERRUPTS, OPENING, SIGNALS, Life

SHORT = "an error of Outrider's that speaks of descriptors"
LOSS = frozenset({"NodeLost", "CapacityError"})
CAUSED = {  # what a fault accounts for, by the beginning of its name: types, or "OSError:" and the number's name
    "kill-worker": {"TaskKilled"},
    "kill-child": {"ChildEnded"},
    "kill-": LOSS,
    "stop-worker": frozenset[str](),
    "stop-": LOSS,
    "orphan-": LOSS,
    "stall": LOSS,
    "full-work": {"OSError:ENOSPC"},
    "full-checkpoints": {"CheckpointError:full"},
    "limit-": LOSS | {SHORT, "OSError:EMFILE", "TaskKilled"},
}
FOLLOWS = frozenset({"PeerGone", "TaskStopped", "CheckpointError"})  # in a broadcast, of what happened to another rank
EXITS = {"TERM": (-15,), "HUP": (-1,), "INT": (-2, 1, 130), "KILL": (-9,)}
TOLD_CHARS = 2000  # of what a client wrote, the last
SETTLED = ("right", "wrong", "error", "cancelled", "hang")


@dataclass(frozen=True)
class Found:
    """What the supervisor saw. ``exit``: None where the client had to be killed. ``ended_at``: of its signal."""

    exit: int | None
    struck: frozenset[str]
    ended_at: float | None = None
    marks: dict[str, int] = field(default_factory=dict)  # of ``retry="never"``: how often each was begun
    processes: Sequence[str] = ()
    files: Sequence[str] = ()
    stderr: str = ""


def judge(life: Life, journal: Sequence[Entry], found: Found) -> list[str]:
    """What is wrong, a line each; empty: nothing."""
    return [*_calls(life, journal, found), *_end(life, journal, found), *_left(life, journal, found)]


def _calls(life: Life, journal: Sequence[Entry], found: Found) -> Iterator[str]:
    allowed = _allowed(found.struck)
    open_calls: dict[int, Entry] = {}
    for entry in journal:
        what = entry["what"]
        if what == "call":
            open_calls[entry["number"]] = entry
        elif what in SETTLED:
            if open_calls.pop(entry["number"], None) is None:
                yield f"call {entry['number']} ({entry['kind']}) settled twice"
            yield from _settled(entry, allowed, _is_ending(journal, entry, found))
    waits_for_threads = not (life.threads and found.ended_at is not None)  # a signal ends the program without them
    if not _killed(life) and found.exit is not None and waits_for_threads:
        for entry in open_calls.values():
            yield f"call {entry['number']} ({entry['kind']}) never settled"
    for mark, times in found.marks.items():
        if times > 1:
            yield f'{mark} began {times} times, in spite of retry="never"'


def _settled(entry: Entry, allowed: frozenset[str], ending: bool) -> Iterator[str]:
    call = f"call {entry['number']} ({entry['kind']})"
    match entry["what"]:
        case "wrong":
            yield f"{call} gave {entry['text']}"
        case "hang":
            yield f"{call} did not settle"
        case "cancelled" if not ending:
            yield f"{call} was cancelled by nobody"
        case "error" if not _is_allowed(entry, allowed | ({"PoolClosed", "CancelledError"} if ending else set())):
            yield f"{call} raised {_shown(entry)}"


def _is_allowed(error: dict[str, Any], allowed: frozenset[str]) -> bool:
    """Of a group, all; and what follows from another rank's end, where that is there."""
    if "leaves" not in error:
        return bool(_names(error) & allowed)
    leaves: list[dict[str, Any]] = error["leaves"]
    return any(_is_allowed(leaf, allowed) for leaf in leaves) and all(
        _is_allowed(leaf, allowed | FOLLOWS) for leaf in leaves
    )


def _names(error: dict[str, Any]) -> set[str]:
    names = set(error["kinds"])
    if "errno" in error:
        names.add(f"OSError:{error['errno']}")
    if "OutriderError" in names and "descriptor" in error["text"]:
        names.add(SHORT)
    if error.get("full") == "True":
        names.add("CheckpointError:full")
    return names


def _allowed(struck: frozenset[str]) -> frozenset[str]:
    names: set[str] = set()
    for fault in struck:
        names |= next((caused for prefix, caused in CAUSED.items() if fault.startswith(prefix)), frozenset())
    return frozenset(names)


def _is_ending(journal: Sequence[Entry], entry: Entry, found: Found) -> bool:
    closing = next((each["at"] for each in journal if each["what"] == "closing"), None)
    return any(at is not None and entry["at"] >= at - 0.5 for at in (closing, found.ended_at))


def _killed(life: Life) -> bool:
    return SIGNALS.get(life.ending) == "KILL"


def _end(life: Life, journal: Sequence[Entry], found: Found) -> Iterator[str]:
    said = {entry["what"]: entry for entry in journal}
    if "hang" in said:
        return
    if found.exit is None:
        last = journal[-1]["what"] if journal else "nothing"
        yield f"the client did not end ({life.ending}); the last that it said: {last}"
        return
    if (raised := said.get("raised")) is not None and not _may_raise(life, raised, found):
        yield f"the program raised {_shown(raised)}"
    in_time = found.ended_at is not None  # else the program had ended before it was to be ended
    if life.ending in SIGNALS and in_time:
        wanted: tuple[int, ...] = EXITS[SIGNALS[life.ending]]
    elif life.ending == INTERRUPTS and in_time:
        wanted = EXITS["INT"]
    elif life.ending == OPENING and in_time:
        wanted = (*EXITS["TERM"], 143)
    else:
        wanted = (0,)
    if found.exit not in wanted:
        yield f"the client ended with {found.exit}, not {' or '.join(map(str, wanted))}"
    if found.ended_at is None and (wrote := _unexpected(life, found.stderr)):
        yield f"the client wrote: {wrote[-TOLD_CHARS:]}"


def _unexpected(life: Life, stderr: str) -> str:
    """Return what a client should not have written to its standard error.

    asyncssh may write a burst to a connection whose other end has just gone, and asyncio logs the last of these writes.
    """
    if not life.as_remote:
        return stderr
    return "\n".join(
        line for line in stderr.splitlines() if line.strip() not in {"", "socket.send() raised exception."}
    )


def _may_raise(life: Life, raised: Entry, found: Found) -> bool:
    if found.ended_at is not None:
        return bool({"KeyboardInterrupt", "CancelledError", "SystemExit", "PoolClosed"} & _names(raised))
    return _is_allowed(raised, _allowed(found.struck))


def _left(life: Life, journal: Sequence[Entry], found: Found) -> Iterator[str]:
    for process in found.processes:
        yield f"left a process: {process}"
    for file in found.files:
        yield f"left a file: {file}"
    for entry in journal:
        if entry["what"] == "closed" and entry["tasks"]:
            yield f"left tasks: {entry['tasks']}"
        if entry["what"] == "left" and found.ended_at is None:
            for what in ("threads", "descriptors", "children"):
                if entry[what]:
                    yield f"left in the client: {what} {entry[what]}"
    if CLIENT_LIMIT in found.struck or life.ending != FINISH:
        return
    for entry in journal:
        if entry["what"] == "error" and entry["kind"].startswith("probe") and not _has_ended(journal):
            yield f"the pool works no more, when all is as it was: {entry['kind']} raised {_shown(entry)}"


def _has_ended(journal: Sequence[Entry]) -> bool:
    """The pool said that it has ended, and for what: then it need not work."""
    return any(entry["what"] == "event" and entry["event"].startswith("PoolClosing") for entry in journal)


def _shown(error: dict[str, Any]) -> str:
    if "leaves" in error:
        return f"{error['kinds'][0]}({'; '.join(_shown(leaf) for leaf in error['leaves'])})"
    more = {name: error[name] for name in ("errno", "signal", "exit_code", "losses", "cause") if name in error}
    return f"{error['kinds'][0]}: {error['text']}{f' {more}' if more else ''}"
