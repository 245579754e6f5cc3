"""Programs leave records of their pools: whole ones, also when they are killed, and none that nobody asked for."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.engine.api.quantities import time_text
from outrider.engine.cli.main import app
from outrider.engine.record.runs.lines import parsed_events, parsed_log, read_samples, whole_lines
from outrider.engine.record.runs.reader import Run, read_json, runs_in

LOST_S = 1.0  # that a client which is killed may cost its record
BEGINNING = """
import asyncio, logging, os, time
from outrider import Local, Pool, compute, events

@compute
def greet(name):
    print("hello", name)
    return name
"""


def program(folder: Path, text: str, **environment: str) -> list[str]:
    """The command of a script, which finds its state below ``folder``."""
    script = folder / "greeting.py"
    script.write_text(BEGINNING + textwrap.dedent(text))
    env = {**os.environ, "OUTRIDER_STATE": str(folder / "state"), "OUTRIDER_RUNS": "1", **environment}
    return [
        "env",
        *(f"{name}={env[name]}" for name in ("OUTRIDER_STATE", "OUTRIDER_RUNS")),
        sys.executable,
        str(script),
    ]


def records(folder: Path) -> list[Run]:
    return runs_in(folder / "state" / "runs")


def log(run: Run, name: str) -> list[str]:
    lines = whole_lines((run.directory / "logs" / f"{name}.log").read_bytes())
    return [parsed.text for line in lines if (parsed := parsed_log(line)) is not None]


def test_a_record_that_cannot_be_begun_keeps_no_pool_from_opening(tmp_path: Path) -> None:
    """Here the settings cannot be searched for secrets: a plugin of the user's own breaks when it is looked at."""
    text = """
        from dataclasses import dataclass
        from outrider import Plugin
        @dataclass
        class Odd(Plugin):
            name = "odd"
            value: object = None
            def __getattribute__(self, name):
                if name == "value":
                    raise RuntimeError("not now")
                return super().__getattribute__(name)
        with Pool(provider=Local(), nodes=1, plugins=[Odd()], console="plain") as pool:
            print(greet("all") >> pool)
    """
    done = subprocess.run(program(tmp_path, text), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "not now" in done.stderr
    assert records(tmp_path) == []


def test_a_script_leaves_a_record(tmp_path: Path) -> None:
    text = """
        with Pool(provider=Local(), nodes=2) as pool:
            greet("all") @ pool
            greet("one") >> pool
            list(pool.map(greet, range(3)))
            raise ValueError("bad luck")
    """
    done = subprocess.run(program(tmp_path, text), capture_output=True, text=True, check=False)
    assert "ValueError: bad luck" in done.stderr
    (run,) = records(tmp_path)
    assert (run.name, run.status["state"], run.status["exit"], run.status["most_nodes"]) == ("greeting", "ended", 1, 2)
    result = read_json(run.directory / "result.json")
    assert result["error"]["message"] == "bad luck"
    assert result["calls"]["greet"]["calls"] >= 3
    assert read_json(run.directory / "run.json")["argv"][-1].endswith("greeting.py")
    for rank in range(2):
        begins, said = log(run, f"rank-00{rank}")
        assert begins.startswith("greet: generation 1 begins")
        assert said == "hello all"
    nodes = [line for path in run.directory.glob("logs/node-*") for line in log(run, path.stem)]
    assert "[greet #2] hello one" in nodes
    seen = [each["event"] for each in parsed_events((run.directory / "events.jsonl").read_bytes())]
    assert seen[0] == "pool_starting"
    assert seen[-1] == "pool_closed"
    assert seen.count("task_started") == seen.count("task_finished") > 0


@pytest.mark.parametrize(
    ("setting", "variable"),
    [("logging.basicConfig()", "1"), ("", "0"), ("run = False", "1")],
    ids=["logging", "environment", "option"],
)
def test_a_program_leaves_no_record_that_nobody_wants(tmp_path: Path, setting: str, variable: str) -> None:
    text = f"""
        run = None
        {setting}
        with Pool(provider=Local(), run=run) as pool:
            assert greet("one") >> pool == "one"
    """
    subprocess.run(program(tmp_path, text, OUTRIDER_RUNS=variable), check=True, capture_output=True)
    assert not (tmp_path / "state" / "runs").exists()


def test_a_pool_that_cannot_start_leaves_a_record_too(tmp_path: Path) -> None:
    text = """
        from outrider import SSH
        Pool(provider=SSH(hosts=["nobody@127.0.0.1:1"]), boot_timeout=1, replace_timeout=1, run="lost").__enter__()
    """
    done = subprocess.run(program(tmp_path, text), capture_output=True, text=True, check=False)
    (run,) = records(tmp_path)
    assert str(run.status["error"] or "no error") in done.stderr
    assert (run.name, run.status["state"], run.status["exit"]) == ("lost", "ended", 1)


SYNC = "with pool: time.sleep(600)"
ASYNC = """
async def main():
    async with pool: await asyncio.sleep(600)
asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("sent", "status", "code", "error"),
    [(signal.SIGINT, {-signal.SIGINT, 1}, 130, "KeyboardInterrupt"), (signal.SIGTERM, {-15}, 143, "SystemExit")],
)
@pytest.mark.parametrize("block", [SYNC, ASYNC], ids=["with", "async with"])
@pytest.mark.parametrize("opens", [True, False], ids=["opening", "open"])
def test_what_has_ended_a_program_is_recorded_as_such(  # noqa: PLR0917
    tmp_path: Path, opens: bool, block: str, sent: signal.Signals, status: set[int], code: int, error: str
) -> None:
    provider = "SSH(hosts=['nobody@127.0.0.1:1'])" if opens else "Local()"
    text = f"from outrider import SSH\npool = Pool(provider={provider}, console='plain', run='ended')\n{block}"
    with subprocess.Popen(program(tmp_path, text), stderr=subprocess.PIPE, text=True) as client:
        assert client.stderr is not None
        until = "starting" if opens else "ready after"
        assert any(until in line for line in client.stderr)
        client.send_signal(sent)
        client.stderr.read()
        assert client.wait(60) in status
    (run,) = records(tmp_path)
    assert (run.status["exit"], run.status["error"]) == (code, error)


def test_a_state_folder_that_cannot_be_written_costs_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "runs").write_text("a file")
    text = """
        with Pool(provider=Local(), nodes=2) as pool:
            assert greet("all") @ pool == ["all", "all"]
    """
    done = subprocess.run(program(tmp_path, text), capture_output=True, text=True, check=True)
    assert done.stderr.count("this run is not recorded: ") == 1
    assert "OUTRIDER_RUNS=0 turns records off" in done.stderr


def test_a_system_without_threads_for_a_record_costs_one_line(tmp_path: Path) -> None:
    text = """
        import threading
        start = threading.Thread.start
        def refused(thread):
            if thread.name.startswith("outrider-record"):
                raise RuntimeError("can't start new thread")
            start(thread)
        threading.Thread.start = refused
        async def main():
            async with Pool(provider=Local(), nodes=1, console="plain") as pool:
                assert await pool.run(greet("one")) == "one"
        asyncio.run(main())
    """
    done = subprocess.run(program(tmp_path, text), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("this run is not recorded: ") == 1
    assert "can't start new thread" in done.stderr


KILLED = """
    @compute
    def chatter():
        for step in range(10**9):
            print("step", step, flush=True)
            time.sleep(0.01)

    async def main():
        async with Pool(provider=Local(), nodes=2, console="silent") as pool:
            seen = pool.events()
            pool.submit(chatter())
            async for event in seen:
                if isinstance(event, events.TaskOutput):
                    os.write(1, f"{event.at} {event.text.splitlines()[-1]}\\n".encode())

    asyncio.run(main())
"""


MOMENTS_S = [random.Random(seed).uniform(0.0, 4.0) for seed in range(20)]


@pytest.mark.parametrize(
    "moment_s", [*MOMENTS_S[:5], *(pytest.param(each, marks=pytest.mark.nightly) for each in MOMENTS_S[5:])]
)
def test_whenever_a_client_is_killed_its_record_can_be_read(
    tmp_path: Path, moment_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its start on, so there may be no record yet; and with what it has seen up to a second before."""
    assert in_time(tmp_path, lambda folder: is_read_after_a_kill(folder, moment_s, monkeypatch, capsys))


def in_time(folder: Path, check: Callable[[Path], bool]) -> bool:
    """Whether a record was written in time, in one of several tries: a busy computer may keep its thread from that."""
    for number in range(5):
        (own := folder / f"{number}").mkdir()
        if check(own):
            return True
    return False


def is_read_after_a_kill(
    tmp_path: Path, moment_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> bool:
    """Whether what its client had seen a second before is in the record."""
    in_time = True
    with subprocess.Popen(program(tmp_path, KILLED), stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        time.sleep(moment_s)  # what is tested is any moment, and not one at which something has happened
        killed_at = time.time()
        client.send_signal(signal.SIGKILL)
        seen = [line.split(maxsplit=1) for line in client.stdout.read().decode().splitlines()]
    for run in records(tmp_path):
        assert (run.owner, run.ended) == ("dead", False)
        for name in ("run.json", "status.json"):
            content = (run.directory / name).read_bytes() if (run.directory / name).exists() else b"{}"
            assert isinstance(json.loads(content), dict)
        events = path.read_bytes() if (path := run.directory / "events.jsonl").exists() else b""
        assert len(list(parsed_events(events))) == len(whole_lines(events))
        lines = [line for path in run.directory.glob("logs/*.log") for line in whole_lines(path.read_bytes())]
        early = {text for at, text in seen if float(at) < killed_at - LOST_S}
        in_time &= early <= {
            parsed.text.partition("] ")[2] for line in lines if (parsed := parsed_log(line)) is not None
        }
        monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
        with pytest.raises(SystemExit):
            app(["runs"])
        assert "its owner died" in capsys.readouterr().out
    assert seen == [] or records(tmp_path)
    return in_time


@pytest.mark.parametrize("lines", [3, 40, 120])
def test_a_client_that_is_killed_costs_its_record_a_second(tmp_path: Path, lines: int) -> None:
    assert in_time(tmp_path, lambda folder: costs_a_second(folder, lines))


def costs_a_second(tmp_path: Path, lines: int) -> bool:
    with subprocess.Popen(program(tmp_path, KILLED), stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        for _ in range(lines):
            told = client.stdout.readline()
        client.send_signal(signal.SIGKILL)
        told = (client.stdout.read().splitlines() or [told])[-1]  # the last that it has seen
    at = told.decode().partition(" ")[0]
    if not (found := records(tmp_path)):
        return lines <= 100  # the thread that writes had not begun
    (run,) = found
    assert (run.owner, run.ended) == ("dead", False)
    whole = run.directory / "events.jsonl"
    events = whole.read_bytes() if whole.exists() else b""
    assert all(json.dumps(each) for each in parsed_events(events))
    path = next(iter(run.directory.glob("logs/node-*")), None)
    written = [] if path is None else [parsed_log(line) for line in whole_lines(path.read_bytes())]
    steps = [int(line.text.split()[-1]) for line in written if line is not None]
    assert steps == list(range(len(steps)))
    last = written[-1].at if written and written[-1] is not None else ""
    return lines <= 100 or last >= time_text(float(at) - LOST_S)


def test_what_nodes_were_used_for_is_in_the_record(tmp_path: Path) -> None:
    text = """
        async def main():
            async with Pool(provider=Local(), nodes=2, console="silent", sample_every=0.1) as pool:
                seen = set()
                async for event in pool.events():
                    if isinstance(event, events.NodeSampled):
                        seen.add(event.node)
                    if len(seen) == 2:
                        break
        asyncio.run(main())
    """
    done = subprocess.run(program(tmp_path, text), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    (run,) = records(tmp_path)
    samples = read_samples(run.directory)
    assert {sample.node for sample in samples} == {0, 1}
    assert all(0 <= sample.cpu <= 1 and sample.memory_total_bytes > 0 and sample.at > 1e9 for sample in samples)
    told = {event["event"] for event in parsed_events((run.directory / "events.jsonl").read_bytes())}
    assert "node_sampled" not in told
