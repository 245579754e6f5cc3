"""Not a test: what `test_journal` runs. Children that own a pool and create things are killed at one line or another.

Prints, as JSON, how many were killed, how many had created something by then, and what is wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from outrider.providers.shared import journal, paths, pool_lock
from outrider.providers.shared.journal import Journal

POOL = "stress"
PLACE = {"region": "us-east-1"}
FILES = {journal.__file__, pool_lock.__file__, paths.__file__}


def work(state: Path, made: Path) -> None:
    """As a fleet does it: a thing exists from somewhere in the call on, whether its answer comes or not."""
    book = Journal.open(state)
    with book.own(POOL, "fake", PLACE) as ownership:
        ownership.keep("client_key", "secret")
        for number in range(3):
            intent = book.intend(POOL, "instances", f"token-{number}", PLACE)
            (made / intent.token).touch()
            book.happened(intent, [f"i-{number}"])
        for thing in made.iterdir():
            thing.unlink()
        book.settled(POOL, PLACE)


def killed_at(line: int, state: Path, made: Path) -> bool:
    child = os.fork()
    if child == 0:
        seen = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal seen
            if frame.f_code.co_filename not in FILES:
                return None
            if event == "line":
                seen += 1
                if seen == line:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work(state, made)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def found(state: Path, made: Path) -> list[str]:
    """What is wrong after the child's end."""
    wrong: list[str] = []
    things = {each.name for each in made.iterdir()}
    book = Journal.open(state)
    records = {record.pool: record for record in book.orphans()}
    known = {intent.token for record in records.values() for intent in record.intents}
    if things - known:
        wrong.append(f"nobody knows of {sorted(things - known)}")
    if things and records[POOL].places != (PLACE,):
        wrong.append(f"the place is {records[POOL].places}")
    if any(record.standing != "dead" for record in book.records()):
        wrong.append("a dead owner's pool counts as alive")
    for thing in things:
        (made / thing).unlink()
    for name in records:
        with book.own(name, "fake", adopt=True):
            book.settled(name)
    if book.records() or any(book.pools.iterdir()):
        wrong.append("something is left after the pool is settled")
    return wrong


def main(root: Path, seed: int, kills: int) -> None:
    state, made = root / "state", root / "made"
    made.mkdir()
    lines = 0
    while killed_at(lines + 100, state, made):  # so many lines a whole life has, about
        lines += 100
        found(state, made)
    chance = random.Random(seed)
    told: dict[str, Any] = {"killed": 0, "after_creating": 0, "wrong": []}
    for line in sorted(chance.sample(range(1, lines + 100), kills)):
        told["killed"] += killed_at(line, state, made)
        told["after_creating"] += bool(list(made.iterdir()))
        told["wrong"] += [f"killed at line {line}: {each}" for each in found(state, made)]
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
