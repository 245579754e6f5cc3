"""Trainings whose ranks are killed at any instant, generation after generation: ``killed.py folder seed``.

Ranks are processes that believe to be in a pool. Now and then one of a generation is left running, as on a machine that
cannot be reached, while the next generation is at work. Ends with a line of JSON, or with what was found to be wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from outrider import checkpoint
from outrider.engine.api.errors import CheckpointFenced
from outrider.engine.checkpoint.records import Manifest, checked, complete
from outrider.engine.checkpoint.store import open_store

GENERATIONS, STEPS, SIZE = 4, 100, 4_000
KEEP = 2
PATIENCE_S = 60.0


def shared(generation: int, step: int) -> Any:
    return np.arange(SIZE) * step + generation


def rank_main(folder: Path, generation: int, rank: int, ranks: int, seed: int) -> NoReturn:
    """Train; say what it has resumed from, and when it has come to the end."""
    peers = [{"rank": r, "node": r, "hostname": "h", "address": "a", "port": 0} for r in range(ranks)]
    facts = {
        "pool": f"pool{seed}",
        "job": 1,
        "node": rank,
        "total_nodes": ranks,
        "worker": 0,
        "workers_per_node": 1,
        "rank": rank,
        "world_size": ranks,
        "local_rank": 0,
        "local_world_size": 1,
        "is_head": rank == 0,
        "head_addr": "a",
        "head_port": 1,
        "accelerators": 0,
        "total_accelerators": 0,
        "accelerator": None,
        "peers": peers,
        "hostname": "h",
        "generation": generation,
        "attempt": 1,
    }
    os.environ["COMPUTE_POOL"] = json.dumps(facts)
    try:
        saving = checkpoint("run", root=folder, every=3, keep=KEEP, timeout=60)
        start, state = saving.load()
        loaded = None if state is None else (state["generation"], start)
        if state is not None:
            assert state["step"] == start
            assert np.array_equal(state["shared"], shared(state["generation"], start))
            assert state["own"][0] == rank % state["ranks"]
            assert len(set(state["own"])) == 1
        mark(folder, f"loaded-{generation}-{rank}", json.dumps(loaded))
        for step in range(start + 1, start + STEPS + 1):
            time.sleep(0.002)
            own = np.full(SIZE, rank)
            state = {"step": step, "generation": generation, "ranks": ranks, "shared": shared(generation, step)}
            saving.save(step, {**state, "own": own})
        saving.close()
        mark(folder, f"ended-{generation}-{rank}", "")
    except CheckpointFenced:
        mark(folder, f"fenced-{generation}-{rank}", "")
    except BaseException as error:  # noqa: BLE001
        mark(folder, f"error-{generation}-{rank}", repr(error))
    os._exit(0)


def mark(folder: Path, name: str, text: str) -> None:
    """Whole, or not at all: this process may be killed here too."""
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)


def newest(folder: Path) -> tuple[int, int] | None:
    """(generation, step)"""
    store = open_store(str(folder), "run")
    for at in complete(store.names()):
        manifest = Manifest.load(store.get(at.manifest))
        return manifest.generation, manifest.step
    return None


def check_files(folder: Path) -> int:
    """Every complete checkpoint is what its manifest says; how many there are."""
    store = open_store(str(folder), "run")
    found = complete(store.names())
    for at in found:
        manifest = Manifest.load(store.get(at.manifest))
        assert (manifest.term, manifest.step) == (at.term, at.step)
        for name, (size, digest) in manifest.files.items():
            checked(store.get(f"{at.folder}/{name}"), name, (size, digest))
    return len(found)


class Run:
    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.random = random.Random(seed)
        self.left: list[int] = []  # ranks of older generations that still run
        self.killed = self.resumed = 0

    def generation(self, number: int, *, undisturbed: bool) -> None:
        ranks = self.random.choice([1, 2, 3, 4])
        before = newest(self.folder)
        pids = [self.fork(number, rank, ranks) for rank in range(ranks)]
        if not undisturbed:
            if before is None and number == GENERATIONS - 1:  # on a slow computer none has come so far
                self.wait_for_checkpoint()
            time.sleep(self.random.random() * self.random.choice([0.1, 0.4, 1.2]))
            self.random.shuffle(pids)
            spared = pids.pop() if self.random.random() < 0.3 else None
            for pid in pids:
                self.kill(pid)
                if self.random.random() < 0.5:
                    time.sleep(self.random.random() * 0.05)
            if spared is not None:
                self.left.append(spared)
        else:
            for pid in pids:
                os.waitpid(pid, 0)
        self.check(number, ranks, before, undisturbed=undisturbed)

    def wait_for_checkpoint(self) -> None:
        """Wait until a checkpoint is complete, for the last generation to resume from."""
        give_up = time.monotonic() + PATIENCE_S
        while newest(self.folder) is None:
            assert time.monotonic() < give_up, "no checkpoint has become complete"
            time.sleep(0.005)

    def fork(self, generation: int, rank: int, ranks: int) -> int:
        pid = os.fork()
        if not pid:
            rank_main(self.folder, generation, rank, ranks, self.seed)
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.killed += 1

    def check(self, number: int, ranks: int, before: tuple[int, int] | None, *, undisturbed: bool) -> None:
        errors = [f"{path.name}: {path.read_text()}" for path in self.folder.glob("error-*")]
        assert not errors, errors
        loaded = [json.loads(path.read_text()) for path in self.folder.glob(f"loaded-{number}-*")]
        assert all(each == loaded[0] for each in loaded), f"the ranks of one world resumed from {loaded}"
        if loaded and before is not None:
            assert tuple(loaded[0]) >= before, f"{loaded[0]} was loaded where {before} was complete"
            self.resumed += 1
        if undisturbed:
            assert len(list(self.folder.glob(f"ended-{number}-*"))) == ranks
        assert before is None or (newest(self.folder) or (0, 0)) >= before, "the newest one is gone"

    def end(self) -> None:
        for pid in self.left:
            self.kill(pid)
        kept = check_files(self.folder)
        assert kept == KEEP
        print(json.dumps({"seed": self.seed, "killed": self.killed, "resumed": self.resumed}))


def main() -> None:
    run = Run(Path(sys.argv[1]), int(sys.argv[2]))
    try:
        for number in range(1, GENERATIONS):
            run.generation(number, undisturbed=False)
            if not run.left:
                check_files(run.folder)
        run.generation(GENERATIONS, undisturbed=True)
        run.end()
    finally:
        for pid in run.left:
            if Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
