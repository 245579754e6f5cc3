"""The client that has no event loop: several threads share a `SyncPool`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from random import Random

from outrider import Pool, SyncPool, TaskStopped

from . import tasks
from .kinds import WrongError, same
from .lane import Client, Drawn, Own, calls_of
from .plan import RAISE
from .told import told

Kind = Callable[[SyncPool, Random], None]


def live(client: Client, pool: Pool) -> None:
    from .driver import forked

    client.journal.write("opening")
    stop = threading.Event()
    try:
        with pool as opened:
            client.begin()
            child = forked(client)
            lanes = [
                threading.Thread(target=_lane, args=(client, opened, number, stop), name=f"lane {number}")
                for number in range(client.life.lanes)
            ]
            try:
                for lane in lanes:
                    lane.start()
                _wait(client, lanes)
                over_s = max((strike.at_s + strike.seconds for strike in client.life.strikes), default=0.0) + 0.5
                time.sleep(max(0.0, client.began_at + over_s - time.monotonic()))
                _called(client, opened, Drawn("probe_run", -1, Random(1)), _plain)
                state = opened.snapshot()
                client.journal.write("state", state=state.state, nodes=[str(node.state) for node in state.nodes])
            finally:
                client.journal.write("closing")
                stop.set()
                if child is not None:
                    child.kill()
                    child.join()
        client.journal.write("closed", tasks=[])
    finally:
        for lane in lanes if stop.is_set() else []:
            lane.join()


def _wait(client: Client, lanes: list[threading.Thread]) -> None:
    until = client.began_at + client.life.end_s if client.life.ending == RAISE else None
    for lane in lanes:
        while lane.is_alive():
            lane.join(0.1)
            if until is not None and time.monotonic() > until:
                raise Own


def _lane(client: Client, pool: SyncPool, number: int, stop: threading.Event) -> None:
    for call in calls_of(client, number, KINDS):
        if stop.is_set():
            return
        _called(client, pool, call, KINDS[call.kind])
        time.sleep(call.dice.choice((0.0, 0.05)))


def _called(client: Client, pool: SyncPool, call: Drawn, run: Kind) -> None:
    kind, number = call.kind, call.number
    client.journal.write("call", number=number, kind=kind)
    try:
        run(pool, call.dice)
    except CancelledError:
        client.journal.write("cancelled", number=number, kind=kind)
    except Exception as error:  # noqa: BLE001 - the referee decides what it means
        what = "wrong" if isinstance(error, WrongError) else "error"
        client.journal.write(what, number=number, kind=kind, **told(error))
    else:
        client.journal.write("right", number=number, kind=kind)


def _plain(pool: SyncPool, dice: Random) -> None:
    x = dice.randrange(10**6)
    same(pool.run(tasks.square(x)), x * x)


def _slow(pool: SyncPool, dice: Random) -> None:
    x = dice.randrange(10**6)
    same(pool.run(tasks.slow_square(x, dice.uniform(0.0, 1.0))), x * x)


def _mapped(pool: SyncPool, dice: Random) -> None:
    items = range(dice.randrange(1, 1000))
    same(list(pool.map(tasks.square, items)), [x * x for x in items])


def _broadcast(pool: SyncPool, dice: Random) -> None:
    got = pool.broadcast(tasks.place.with_(retries=tasks.LOSSES)())
    same([rank for rank, *_ in got], list(range(len(got))))


def _large(pool: SyncPool, dice: Random) -> None:
    data = tasks.pattern(dice.randrange(10**6), dice.choice((10_000, 1_000_000)))
    same(tasks.digest.local(pool.run(tasks.turned(data))), tasks.digest.local(data[::-1]))


def _streamed(pool: SyncPool, dice: Random) -> None:
    count = dice.randrange(1, 200)
    same(list(pool.stream(tasks.counted(count))), [3 * number for number in range(count)])


def _gathered(pool: SyncPool, dice: Random) -> None:
    count = dice.randrange(1, 20)
    same(pool.gather(*map(tasks.square, range(count))), tuple(x * x for x in range(count)))


def _submitted(pool: SyncPool, dice: Random) -> None:
    futures = [pool.submit(tasks.square(x)) for x in range(dice.randrange(1, 30))]
    same([future.result() for future in futures], [x * x for x in range(len(futures))])


def _cancelled(pool: SyncPool, dice: Random) -> None:
    future = pool.submit(tasks.slow_square(3, 30.0))
    time.sleep(dice.uniform(0.0, 0.5))
    future.cancel()
    try:
        same(future.result(), "what was cancelled has no result")
    except (CancelledError, TaskStopped):
        pass


def _raising(pool: SyncPool, dice: Random) -> None:
    text = str(dice.random())
    try:
        same(pool.run(tasks.raises(text)), "it raises")
    except tasks.Expected as error:
        same(error.args, (text, 42))


KINDS: dict[str, Kind] = {
    kind.__name__.strip("_"): kind
    for kind in (
        _plain, _slow, _mapped, _broadcast, _large, _streamed, _gathered, _submitted, _cancelled, _raising,
    )
}  # fmt: skip
