"""W&B's own package has all points of a run once, also when the trackers' process was killed: in files, and online.

It runs where wandb is installed. The files are read as W&B writes them: records of a LevelDB log, each a protobuf of
its package (core/pkg/leveldb and wandb/proto/wandb_internal.proto).
"""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from wandb_server import Server, serving

from outrider import Local, Pool, compute, instance_info, log_artifact, log_metrics, log_params, trackers
from outrider.engine.record.runs.metrics import read_metrics
from outrider.engine.record.runs.names import runs_folder

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed"),
    pytest.mark.filterwarnings("default"),  # of its package
]
KEY = "0" * 40
BLOCK, HEADER = 32768, 7
STEPS, KILLS = 3000, 2


@compute
def train(steps: int) -> None:
    if instance_info().rank == 0:
        log_params({"lr": 0.1, "layers": [8, 8]})
        Path("best.txt").write_text("weights")
        log_artifact("best.txt")
    for step in range(steps):
        value = float("nan") if step == 1 else 1 / (step + 1)
        log_metrics({"loss": value, "rank": instance_info().rank}, step=step % (steps // 2))  # it goes back once
        time.sleep(0.003)


def chunks(path: Path) -> Iterator[bytes]:
    """The records of a file of W&B's."""
    content = path.read_bytes()
    assert content[:4] == b":W&B"
    at, parts = HEADER, b""
    while at + HEADER <= len(content):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", content[at : at + HEADER])
        parts += content[at + HEADER : at + HEADER + size]
        at += HEADER + size
        if kind in (1, 4):  # the whole of a record, or its last part
            yield parts
            parts = b""
    assert not parts


def records(path: Path) -> list[Any]:
    made = import_module("wandb.proto.wandb_internal_pb2")
    found = []
    for chunk in chunks(path):
        record = made.Record()
        record.ParseFromString(chunk)
        found.append(record)
    return found


def history(path: Path) -> list[dict[str, Any]]:
    rows = []
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            items = {each.key or "/".join(each.nested_key): each.value_json for each in record.history.item}
            rows.append({name: json.loads(value) for name, value in items.items()})
    return rows


def senders(record: Path) -> list[int]:
    """The processes that send this record."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            try:
                words = (each / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"outrider.engine.record.trackers" in words and str(record).encode() in words:
                found.append(int(each.name))
    return found


@pytest.mark.parametrize("kills", [0, KILLS])
def test_its_files_have_each_point_once(tmp_path: Path, kills: int) -> None:
    tracker = trackers.WandB(project="digits", mode="offline", folder=tmp_path, artifacts=not kills)
    with Pool(provider=Local(), nodes=2, run="digits", trackers=[tracker], flush_timeout=90) as pool:
        (record,) = runs_folder().glob("*-digits-*")
        killer = subprocess.Popen(
            [sys.executable, __file__, str(record), str(tmp_path), str(kills)], stdout=subprocess.PIPE, text=True
        )
        train(STEPS) @ pool
        killed, _ = killer.communicate(timeout=60)
    assert killed.split() == ["killed"] * kills
    said = json.loads((record / "trackers" / "wandb.json").read_text())
    assert (said["ended"], said["rejected"], said["problem"]) == (True, 0, "")
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = history(path)
    assert [row["_step"] for row in rows] == list(range(len(rows)))
    found = [(row["outrider/step"], f"{float(row['loss'])}", float(row["rank"])) for row in rows]
    logged = [each for each in read_metrics(record) if each.rank == 0]
    assert found == [(each.step, f"{each.values['loss']}", each.values["rank"]) for each in logged]
    assert [row["_timestamp"] for row in rows] == pytest.approx([each.at for each in logged], abs=1e-5)
    kinds = {each.WhichOneof("record_type") for each in records(path)}
    assert {"config", "exit", "metric", "run"} <= kinds
    if not kills:  # its artifact would need a server that knows more
        return
    with serving() as server:
        env = {**os.environ, "WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.address}
        sync = [sys.executable, "-m", "wandb", "sync", "--yes", str(path.parent)]
        done = subprocess.run(sync, capture_output=True, text=True, env=env, cwd=tmp_path, timeout=120, check=False)
    assert [row["_step"] for row in server.rows] == list(range(len(rows))), done.stderr


def test_online_a_process_that_is_killed_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    with serving() as server:
        tracker = trackers.WandB("digits", "me", "online", api_key=KEY, url=server.address, folder=tmp_path)
        with Pool(provider=Local(), run="digits", trackers=[tracker], flush_timeout=90) as pool:
            (record,) = runs_folder().glob("*-digits-*")
            thread = threading.Thread(target=kill_when_rows_came, args=(server, record))
            thread.start()
            slowly(1000) >> pool
            thread.join()
    assert len(server.streams) > 1, "it was killed between two messages"
    assert [row["_step"] for row in server.rows] == list(range(1000))
    assert [row["outrider/step"] for row in server.rows] == [step % 500 for step in range(1000)]
    assert [row["loss"] for row in server.rows] == pytest.approx([step / 7 for step in range(1000)])


@compute
def slowly(steps: int) -> None:
    for step in range(steps):
        log_metrics({"loss": step / 7}, step=step % (steps // 2))
        time.sleep(0.04)  # W&B's package sends each 15 s


def kill_when_rows_came(server: Server, record: Path) -> None:
    until = time.monotonic() + 60
    while not server.rows and time.monotonic() < until:
        time.sleep(0.05)
    for pid in senders(record):
        os.kill(pid, signal.SIGKILL)


def kill(record: Path, folder: Path, times: int) -> None:
    """Kill the process that sends, each time when W&B has begun to write a file of its own."""
    seen: set[Path] = set()
    for _ in range(times):
        until = time.monotonic() + 60
        while not (new := set(folder.glob("wandb/offline-run-*/*.wandb")) - seen) or not any(
            path.stat().st_size > BLOCK for path in new
        ):
            assert time.monotonic() < until
            time.sleep(0.05)
        seen |= new
        for pid in senders(record):
            os.kill(pid, signal.SIGKILL)
        print("killed", flush=True)


if __name__ == "__main__":
    kill(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
