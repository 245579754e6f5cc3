"""Lives, each in a process of its own: forked from one that has imported what takes long to import."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from lives import turns
from lives.verdict import Verdict

from .kinds import KINDS
from .life import live

LIFE_S = 1500.0  # for one life in all; what a life waits for has deadlines of its own, which say more
CLOUD = ("moto.moto_server.werkzeug_app", "moto.ec2.responses", "moto.iam.responses")  # a second of processor time
CONTEXT = multiprocessing.get_context("forkserver")


def played(lives: Sequence[turns.Life], jobs: int) -> Iterator[Verdict]:
    """As they end, ``jobs`` of them at a time."""
    CONTEXT.set_forkserver_preload([__name__, *CLOUD])
    yield from turns.played(lives, _alone, jobs=jobs)


def _alone(kind: str, seed: int) -> Verdict:
    """In a process of its own. Whatever ends that process, its hosts end with it."""
    began = time.monotonic()
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_play, args=(kind, seed, theirs))
    process.start()
    theirs.close()
    try:
        told = ours.recv() if ours.poll(LIFE_S) else f"the life has not ended within {LIFE_S:g} s"
    except EOFError:
        told = "the life's process has died"
    finally:
        ours.close()
    process.kill()
    process.join()
    return told if isinstance(told, Verdict) else Verdict(kind, seed, (), [told], time.monotonic() - began)


def _play(kind: str, seed: int, verdict: Connection) -> None:
    try:
        verdict.send(live(KINDS[kind], seed))
    except Exception:  # noqa: BLE001 - the campaign goes on, and shows it
        verdict.send(f"the life itself failed:\n{traceback.format_exc()[-6000:]}")
