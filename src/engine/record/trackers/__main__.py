"""The process that sends one run's record to its trackers: ``python -m outrider.engine.record.trackers RECORD``.

The pool's program starts this process and writes the trackers to its stdin as a pickle, so that no secret is in its
arguments. The two processes share nothing else: this process reads from the record whether the run has ended, or the
pool's program is dead. Then this process sends the remaining data, and ends. If this process is killed, the next
process of the same kind sends the remaining data.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ...wire import script_modules
from ..runs.reader import at_present, run_of
from .base import Tracker
from .feed import POLL_S, Feed, end_of
from .state_file import Busy, StateFile

NICE = 10
# The pool's program ends this process some seconds after the run. If it does not, this process ends itself this many
# seconds later.
OWNER_S = 10.0
DEAD_OWNER_S = 30.0  # seconds for which this process goes on sending after the pool's program died
LOCK_AGAIN_S = 0.5


def main() -> None:
    with suppress(OSError):
        # this process may have inherited a real-time policy from the pool's program
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    with suppress(OSError):
        os.nice(NICE)
    order, flush_s = pickle.load(sys.stdin.buffer)
    sys.stdin.close()
    directory = Path(sys.argv[1])
    # if a tracker's class is defined in the program's script, a copy of the class is created in this namespace
    script_modules.begin(script_modules.Namespace())
    trackers = [tracker for name, pickled in order if (tracker := _loaded(directory, name, pickled)) is not None]
    done = send(directory, trackers, flush_s) and len(trackers) == len(order)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if done else 1)  # do not join the threads: one may still wait for a server that does not reply


def _loaded(directory: Path, name: str, pickled: bytes) -> Tracker | None:
    """Return a tracker; None: its module cannot be imported in this process. The tracker's state file then has
    the error.
    """
    try:
        tracker: Tracker = pickle.loads(pickled)
    except Exception as error:  # noqa: BLE001  a user's own class may raise anything
        traceback.print_exc()
        file = StateFile(directory, name)
        with suppress(Busy, OSError), file.locked():
            cursor = file.load()
            cursor.problem = f"{type(error).__name__}: {error}"[:500]
            file.save(cursor)
        return None
    return tracker


def send(directory: Path, trackers: Sequence[Tracker], flush_s: float) -> bool:
    """Send the record to all trackers at the same time. Return whether every tracker got all data.

    ``flush_s``: how long the pool's program waits after the run. This function returns at most `OWNER_S` later, or, if
    that program died, `DEAD_OWNER_S` after its death.
    """
    threads = [
        threading.Thread(target=_feed, args=(directory, each), name=f"outrider-{each.name}", daemon=True)
        for each in trackers
    ]
    for thread in threads:
        thread.start()
    over_since: float | None = None
    while any(thread.is_alive() for thread in threads):
        next(thread for thread in threads if thread.is_alive()).join(POLL_S)
        owner, run = at_present(run_of(directory))
        if end_of(run.status, owner) is None:
            continue
        now = time.monotonic()
        over_since = now if over_since is None else over_since
        if now - over_since > (DEAD_OWNER_S if owner == "dead" else flush_s + OWNER_S):
            return False
    return True


def _feed(directory: Path, tracker: Tracker) -> None:
    feed = Feed(directory, tracker)
    while True:
        try:
            with feed.file.locked():
                feed.run()
            return
        except (Busy, OSError):  # another process is sending to this tracker, or the disk is full
            time.sleep(LOCK_AGAIN_S)
        except Exception:  # noqa: BLE001  a defect is logged, and the feed is retried
            traceback.print_exc()
            time.sleep(10 * LOCK_AGAIN_S)


if __name__ == "__main__":
    main()
