"""`outrider run` from the outside: what belongs to it and what to the program, exit codes, a lost node, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.cli.run import misplaced_options, table_of, with_program_apart
from outrider.engine.record.runs.reader import read_json, runs_in
from outrider.errors import SpecError

OUTRIDER = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()"]
PROGRAM = """
import os, sys, time
rank, restarts = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"rank {rank} of {os.environ['WORLD_SIZE']}, pid {os.getpid()}, restarts {restarts}", flush=True)
match sys.argv[1:]:
    case ["exit"] if rank == 1: sys.exit(3)
    case ["os"] if rank == 1: os._exit(4)
    case ["kill"] if rank == 1: os.kill(os.getpid(), 9)
    case ["raise"] if rank == 1: raise LookupError("no such shard")
    case ["wait"] if restarts == 0: time.sleep(60)
    case ["again"] if restarts == 0 and rank == 1: sys.exit(5)
"""


def test_the_programs_options_are_its_own() -> None:
    assert with_program_apart(["run", "--nodes", "4", "train.py", "--nodes", "7"]) == [
        "run", "--nodes", "4", "--", "train.py", "--nodes", "7",
    ]  # fmt: skip
    assert with_program_apart(["run", "--nodes=4", "--", "ls", "-l"]) == [
        "run",
        "--nodes=4",
        "--command",
        "--",
        "ls",
        "-l",
    ]
    assert with_program_apart(["run", "--detach", "train.py"]) == ["run", "--detach", "--", "train.py"]
    assert with_program_apart(["run", "--json", "train.py", "--json"]) == ["run", "--json", "--", "train.py", "--json"]
    assert with_program_apart(["run", "-d", "--", "ls"]) == ["run", "-d", "--command", "--", "ls"]
    assert with_program_apart(["run", "--help"]) == ["run", "--help"]
    assert with_program_apart(["ps", "--json"]) == ["ps", "--json"]


@given(st.lists(st.sampled_from(["--nodes", "-h", "--", "x", "--help", "--a=b"])), st.booleans())
def test_whatever_the_program_is_given_comes_through(arguments: list[str], is_script: bool) -> None:
    words = ["train.py", *arguments] if is_script else ["--", "ls", *arguments]
    tokens = with_program_apart(["run", "--nodes", "2", "--set=a=b", *words])
    kept = tokens[tokens.index("--") + 1 :]
    assert kept == (words if is_script else words[1:])
    assert ("--command" in tokens[: tokens.index("--")]) is not is_script


def test_options_become_a_table() -> None:
    given = {
        "nodes": "2:8",
        "provider": None,
        "hosts": ["a,b", "c"],
        "image": ["pip=numpy", "pip=rich>=13", "env.A.B=1", "offline=true"],
        "set": ["lease=60", "provider.user=me", 'volumes=[{url="s3://b", mount="/d"}]', "checkpoints=s3://b/c"],
    }
    assert table_of(given) == {
        "nodes": [2, 8],
        "provider": {"name": "ssh", "hosts": ["a", "b", "c"], "user": "me"},
        "image": {"pip": ["numpy", "rich>=13"], "env": {"A.B": "1"}, "offline": True},
        "lease": 60,
        "volumes": [{"url": "s3://b", "mount": "/d"}],
        "checkpoints": "s3://b/c",
    }
    assert table_of({"hosts": ["a,b"]})["nodes"] == 2
    assert table_of({"provider": "aws", "set": ["provider.region=x"]}) == {"provider": {"name": "aws", "region": "x"}}


@pytest.mark.parametrize("given", [{"nodes": "x"}, {"nodes": "1:2:3"}, {"set": ["lease"]}, {"image": ["=1"]}])
def test_options_that_cannot_be_read_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="takes a n"):
        table_of(given)


# --- the whole --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    (tmp_path / "train.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    yield
    left = tmp_path / "state" / "local"
    assert not left.exists() or list(left.iterdir()) == []


def recorded(state: Path) -> tuple[int, int, str]:
    """What the record of the one run says: the exit code in both of its files, and the error."""
    (found,) = runs_in(state / "runs")
    result = read_json(found.directory / "result.json")
    return found.status["exit"], result["exit"], found.status["error"]


def run(*words: str, look: Callable[[subprocess.Popen[str], str], object] | None = None) -> tuple[int, str, str]:
    """Return the exit code, and what is on stdout and stderr. ``look``: called with each line of stdout."""
    with subprocess.Popen(
        [*OUTRIDER, "run", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if look is not None:
                look(process, line)
        return process.wait(60), "".join(lines), process.stderr.read()


def test_all_ranks_run_and_their_lines_say_which() -> None:
    code, out, _ = run("--nodes", "2", "--ranks-per-node", "2", "train.py")
    assert code == 0
    assert sorted(re.sub(r"pid \d+", "pid", line) for line in out.splitlines()) == [
        f"[rank {rank} · train.py] rank {rank} of 4, pid, restarts 0" for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("how", "code", "told"),
    [
        ("exit", 3, "train.py failed on rank 1 of 2: it ended with exit code 3\n"),
        ("os", 4, "train.py failed on rank 1 of 2: it ended its process with exit status 4"),
        ("kill", 137, "train.py failed on rank 1 of 2: it was killed by SIGKILL"),
        ("raise", 1, "train.py failed on rank 1 of 2: LookupError: no such shard (exit code 1)"),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(
    how: str, code: int, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    found, _, err = run("--nodes", "2", "train.py", how)
    assert (found, told in err) == (code, True), err
    assert recorded(tmp_path / "state") == (code, code, "BroadcastFailed")
    assert ("[rank 1 · train.py] LookupError: no such shard" in err) is (how == "raise")


def test_programs_are_told_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    code, out, err = run("--json", "--nodes", "2", "train.py", "exit")
    said = json.loads(out)
    (found,) = runs_in(tmp_path / "state" / "runs")
    assert (said["id"], said["directory"], said["exit_code"], code) == (found.id, str(found.directory), 3, 3)
    assert (said["first_failure"]["rank"], said["first_failure"]["message"]) == (1, "it ended with exit code 3")
    assert "rank 1 of 2: it ended with exit code 3" in said["said"]
    assert said["took_s"] > 0
    assert "[rank 1 · train.py] rank 1 of 2" in err


def test_programs_are_told_of_a_run_without_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "0")
    code, out, _ = run("--json", "train.py")
    said = json.loads(out)
    assert said.pop("took_s") > 0
    assert (code, said) == (0, {"id": None, "directory": None, "exit_code": 0, "said": "", "first_failure": None})
    assert run("--json", "missing.py")[:2] == (2, "")


def test_ranks_run_again_when_one_fails_if_asked_to() -> None:
    code, out, _ = run("--nodes", "2", "--max-restarts", "1", "train.py", "again")
    assert (code, out.count("restarts 1")) == (0, 2)
    assert re.search(r"rank 1 of 2, pid \d+, restarts 0", out)  # rank 0 may be ended before it says so


def test_a_lost_node_is_replaced_and_all_ranks_run_again() -> None:
    lost: list[int] = []

    def look(_: object, line: str) -> None:
        found = re.search(r"rank 1 of 2, pid (\d+), restarts 0", line)
        if found is not None:  # its fork server leads the process group that is the machine
            fork_server = int(Path(f"/proc/{found[1]}/stat").read_text().rpartition(")")[2].split()[1])
            lost.append(os.getpgid(fork_server))
            os.killpg(lost[0], signal.SIGKILL)

    code, out, err = run("--nodes", "2", "train.py", "wait", look=look)
    assert (code, len(lost), out.count("restarts 1")) == (0, 1, 2), err


@pytest.mark.parametrize(
    ("sent", "status", "code", "error"),
    [
        (signal.SIGINT, 130, 130, "KeyboardInterrupt"),
        (signal.SIGTERM, -signal.SIGTERM, 143, "SystemExit"),
        (signal.SIGHUP, -signal.SIGHUP, 129, "SystemExit"),
    ],
)
def test_ctrl_c_and_other_signals_end_the_run_and_its_pool(
    *, sent: signal.Signals, status: int, code: int, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    found, _, err = run("train.py", "wait", look=lambda process, line: process.send_signal(sent))
    assert found == status
    assert "Traceback" not in err
    assert recorded(tmp_path / "state") == (code, code, error)


SAVES = """
import os, signal, sys, time
from pathlib import Path
rank, restarts = os.environ["RANK"], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
def save(number, frame):
    Path(f"saved-{rank}-{restarts}").touch()
    if sys.argv[1] == "endless": time.sleep(60)
    sys.exit(0)
if sys.argv[1] != "plain" and rank != "1": signal.signal(signal.SIGTERM, save)
if sys.argv[1] == "notice" and restarts:
    print("begun again", flush=True)
    sys.exit(0)
if sys.argv[1] == "notice" and rank == "0": Path(os.environ["OUTRIDER_LOG"]).with_name("preempt").write_text("600")
print("ready", flush=True)
time.sleep(60)
"""


def saved(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.glob("saved-*"))


class Ready:
    """Sends a signal, or runs a command, when two ranks are ready."""

    def __init__(self, *words: str, sent: signal.Signals | None = None) -> None:
        self._words, self._sent, self._count = words, sent, 0

    def __call__(self, process: subprocess.Popen[str], line: str) -> None:
        self._count += "ready" in line
        if self._count == 2 and "ready" in line:
            if self._sent is not None:
                process.send_signal(self._sent)
            else:
                subprocess.run([*OUTRIDER, *self._words], check=True, capture_output=True)


@pytest.mark.parametrize(
    ("sent", "words", "status"),
    [(signal.SIGINT, (), 130), (signal.SIGTERM, (), -signal.SIGTERM), (None, ("stop", "run-1"), 143)],
    ids=["SIGINT", "SIGTERM", "stop"],
)
def test_ranks_that_handle_sigterm_save_before_the_run_ends(
    sent: signal.Signals | None, words: tuple[str, ...], status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    (tmp_path / "save.py").write_text(SAVES)
    code, _, err = run("--nodes", "2", "--set", 'run="run-1"', "save.py", "saves", look=Ready(*words, sent=sent))
    assert (code, saved(tmp_path)) == (status, ["saved-0-0"]), err
    assert "waiting" not in err, "rank 1 handles no SIGTERM, and is killed"


def test_grace_is_over_for_ranks_that_go_on_saving(tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(SAVES)
    code, _, err = run("--nodes", "2", "--grace", "1.2", "save.py", "endless", look=Ready(sent=signal.SIGINT))
    assert (code, saved(tmp_path)) == (130, ["saved-0-0"]), err
    assert "waiting up to 1.2 s for ranks that handle SIGTERM" in err
    code, _, err = run("--nodes", "2", "--grace", "0", "save.py", "endless", look=Ready(sent=signal.SIGTERM))
    assert (code, "waiting" in err) == (-signal.SIGTERM, False)


def test_ranks_that_a_notice_has_ended_run_again_elsewhere(tmp_path: Path) -> None:
    """Though they exit with 0: the work is not done."""
    (tmp_path / "save.py").write_text(SAVES)
    code, out, err = run("--nodes", "1", "save.py", "notice")
    assert (code, saved(tmp_path), "begun again" in out) == (0, ["saved-0-0"], True), err


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [(signal.SIGINT, 130, 130), (signal.SIGTERM, -signal.SIGTERM, 143), (signal.SIGHUP, -signal.SIGHUP, 129)],
)
def test_programs_are_told_of_a_run_that_a_signal_ends(
    *, sent: signal.Signals, status: int, code: int, early: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    words = [*OUTRIDER, "run", "--json", "train.py", "wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while ("starting 1 node" if early else "rank 0 of 1") not in process.stderr.readline():
            pass
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    said = json.loads(out)
    (found,) = runs_in(tmp_path / "state" / "runs")
    assert (said["id"], said["exit_code"], said["said"], said["first_failure"]) == (found.id, code, "", None)
    assert (process.returncode, "Traceback" in err) == (status, False), err


ENDS_AT_ITS_END = """
import os, signal, sys
from types import SimpleNamespace
from outrider.engine.cli import run

def ends(planned):
    os.kill(os.getpid(), signal.SIGTERM)  # while the pool was being closed: the run is over
    return run._End(3)

run._run = ends
sys.exit(run._run_for_programs(SimpleNamespace(record=None, pool=SimpleNamespace(_settings=None))))
"""


def test_programs_are_told_of_a_signal_that_comes_when_the_run_is_over() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_AT_ITS_END], capture_output=True, text=True, check=False)
    assert (done.returncode, json.loads(done.stdout)["exit_code"]) == (-signal.SIGTERM, 143), done.stderr


def test_ctrl_c_while_nodes_are_being_started_is_recorded_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    hosts = ("--hosts", "nobody@127.0.0.1:1", "--set", "boot_timeout=60")
    with subprocess.Popen([*OUTRIDER, "run", *hosts, "train.py"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert "starting 1 node" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(60) == 130
    assert recorded(tmp_path / "state") == (130, 130, "KeyboardInterrupt")


def test_a_run_without_machines_is_recorded_with_its_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    assert run("--accelerator", "H100:8", "train.py")[0] == 125
    assert recorded(tmp_path / "state") == (125, 125, "CapacityError")


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([], 2, "what is to be run is missing"),
        (["missing.py"], 2, "does not exist"),
        (["--nodez", "2", "train.py"], 2, "Did you mean --nodes?"),
        (["--pool", "train", "train.py"], 2, "pool 'train': there is no outrider.toml"),
        (["--accelerator", "H100:8", "train.py"], 125, "CapacityError"),
        (["--", "sh", "-c", "exit 9"], 9, "sh failed on rank 0 of 1"),
        (["--", "no-such-program"], 127, "no-such-program cannot be run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_goes_wrong_has_its_code_and_its_words(words: list[str], code: int, told: str) -> None:
    found, out, err = run(*words)
    assert (found, told in out + err) == (code, True), out + err


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_it(shell: str) -> None:
    from outrider.engine.cli.main import app

    script = app.generate_completion(shell=shell)  # type: ignore[arg-type]
    assert "--ranks-per-node" in script
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert shell != "bash" or (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("hosts", [[""], [" , "], ["", ""]])
def test_hosts_without_a_name_are_refused(hosts: list[str]) -> None:
    with pytest.raises(SpecError, match="--hosts names no host"):
        table_of({"hosts": hosts})


@pytest.mark.parametrize(
    ("source", "arguments", "warned"),
    [
        ("print(1)", ["--nodes", "4"], "--nodes 4 stands behind train.py"),
        ("print(1)", ["--nodes=4", "x"], "outrider run --nodes=4 train.py"),
        ("print(1)", ["--detach", "x"], "outrider run --detach train.py"),
        ("print(1)", ["--ranks-per-node", "--x"], "outrider run --ranks-per-node train.py"),
        ("parser.add_argument('--nodes')", ["--nodes", "4"], ""),
        ("def main(ranks_per_node: int): ...", ["--ranks-per-node", "4"], ""),
        ("print(1)", ["--lr", "4"], ""),
    ],
)
def test_an_option_of_the_run_behind_the_script_gets_a_warning(
    source: str, arguments: list[str], warned: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(source)
    warnings = misplaced_options("train.py", arguments)
    assert warned in "".join(warnings)
    assert bool(warnings) is bool(warned)
