"""What clouds, records and folders say of pools is joined: each pool is in one row."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.cli.pool_search import FoundPool
from outrider.engine.cli.ps import RunSeen, ShownPool, cells, joined, pools_here
from outrider.engine.record.runs.files import RecordFiles
from outrider.providers.local.state import LivingPool, PoolDirectory, living_pools
from outrider.providers.shared.journal import Journal
from outrider.providers.shared.pool_lock import Owner

RUN = RunSeen(
    run="r", pool="train", provider="local", standing="alive", owner="process 7 of me on here", pid=7,
    began=0.0, written=100.0, nodes=3, wanted_nodes=4, spent_usd=1.0, hourly_usd=3600.0,
)  # fmt: skip
FOLDER = LivingPool("train-00ff00", 7, 50.0, 2, Path("/state"))
NAMES = st.sampled_from(["train", "train-00ff00", "train-00ff01", "other"])


def owner(pid: int) -> str:
    return f"process {pid} of me on here"


def a_run(pool: str, pid: int) -> RunSeen:
    return RunSeen(run="r", pool=pool, provider="ssh", standing="alive", owner=owner(pid), pid=pid)


PIDS = st.integers(1, 2)
FOUND = st.builds(lambda name, pid: FoundPool(name, "aws", {}, owner(pid), "alive"), NAMES, PIDS)
FOLDERS = st.builds(lambda name, pid: LivingPool(name, pid, 0.0, 1, Path()), NAMES, PIDS)


@given(st.lists(FOUND), st.lists(st.builds(a_run, NAMES, PIDS)), st.lists(FOLDERS))
def test_each_pool_is_in_exactly_one_row(found: list[FoundPool], runs: list[RunSeen], local: list[LivingPool]) -> None:
    rows = joined(found, runs, local, now=0.0, host="here")
    assert all(sum(row.facts is pool for row in rows) == 1 for pool in found)
    assert sum(row.facts.provider == "local" for row in rows) == len(local)
    assert sum(bool(row.run) for row in rows) == len(runs)
    assert len(rows) <= len(found) + len(runs) + len(local)


def test_a_record_says_more_of_a_folder() -> None:
    (row,) = joined([], [RUN], [FOLDER], now=101.0, host="here")
    assert (row.facts.pool, row.since, row.nodes, row.wanted_nodes, row.spent_usd, row.run) == (
        "train-00ff00", 0.0, 3, 4, 2.0, "r",
    )  # fmt: skip
    assert cells(row, 120.0) == (
        "train-00ff00", "local", "3 of 4", "2 min", "2.00", "3600.00", "owned by process 7 of me on here",
    )  # fmt: skip


def test_a_folder_without_a_record_is_shown() -> None:
    other = RunSeen(run="r", pool="train", provider="ssh", standing="alive", owner="process 8 of me on here", pid=8)
    mine, theirs = sorted(joined([], [other], [FOLDER], now=60.0, host="here"), key=lambda row: row.run)
    assert (mine.facts.owner, mine.nodes, mine.since, mine.run) == ("process 7 on here", 2, 50.0, "")
    assert theirs.facts.provider == "ssh"


def test_a_pool_of_a_cloud_has_what_its_record_says() -> None:
    found = FoundPool("train-00ff00", "aws", {"region": "us-east-1"}, RUN.owner, "alive")
    (row,) = joined([found], [RUN], [], now=100.0, host="here")
    assert (row.nodes, row.wanted_nodes, row.spent_usd) == (3, 4, 1.0)
    assert cells(row, 100.0)[1:3] == ("aws us-east-1", "3 of 4")


def test_living_pools_are_those_whose_owner_is_locked(tmp_path: Path) -> None:
    assert living_pools(tmp_path) == []
    made = PoolDirectory(tmp_path, "mine")
    (made.path / "n0").mkdir()
    (made.path / "notes").mkdir()
    dead = tmp_path / "local" / "dead"
    dead.mkdir()
    (dead / "owner").write_text("1\n")
    (tmp_path / "local" / "begun").mkdir()
    (found,) = living_pools(tmp_path)
    assert (found.name, found.pid, found.nodes, found.directory) == ("mine", os.getpid(), 1, made.path)
    assert abs(found.since - time.time()) < 60
    made.remove()
    assert living_pools(tmp_path) == []


def test_looking_leaves_the_lock_of_a_dead_pool_free(tmp_path: Path) -> None:
    made = PoolDirectory(tmp_path, "mine")
    made.remove()
    dead = tmp_path / "local" / "mine"
    dead.mkdir()
    (dead / "owner").write_text("1\n")
    assert living_pools(tmp_path) == []
    with (dead / "owner").open("r+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)


def shown(folder: Path, **status: object) -> list[ShownPool]:
    record = RecordFiles.make(folder, "train", 1e9)
    try:
        record.replace("status.json", {"state": "running", "pool": "train", "provider": "ssh", "nodes": 2, **status})
        me = asdict(Owner.this(record.directory))
        spec = {"specs": [{"provider": {"class": "SSH", "hosts": [{"name": "gpu1"}, {"name": "gpu2"}]}}]}
        record.replace("run.json", {"owner": me, "spec": spec})
        return pools_here([])
    finally:
        record.close()


def test_a_pool_of_the_users_hosts_is_known_by_its_record(book: Journal) -> None:
    (row,) = shown(book.root / "runs")
    assert (row.facts.pool, row.facts.provider, row.facts.place) == ("train", "ssh", {"hosts": "gpu1,gpu2"})
    assert row.facts.owner.startswith(f"process {os.getpid()} of ")
    assert json.loads(json.dumps(row.as_json()))["nodes"] == 2
    assert pools_here([]) == []  # its owner lives no more


def test_a_run_that_has_ended_is_no_pool(book: Journal) -> None:
    assert shown(book.root / "runs", state="ended") == []


def test_a_run_of_another_computer_is_shown_while_it_is_written(book: Journal) -> None:
    record = RecordFiles.make(book.root / "runs", "train", 1e9)
    other = {**asdict(Owner.this(record.directory)), "host": "other", "boot": "other", "inode": 0}
    record.replace("run.json", {"owner": other})
    record.close()
    for since, count in ((10.0, 1), (1000.0, 0)):
        record.replace(
            "status.json", {"state": "running", "pool": "train", "provider": "ssh", "written": time.time() - since}
        )
        assert [row.facts.standing for row in pools_here([])] == ["elsewhere"] * count
