"""The programs of a Slurm job's steps, without Slurm: real processes with the variables that it would give them."""

from __future__ import annotations

import ast
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.providers.slurm.step import programs

NODE, JOB = "c0", "4711"
ODD = 'it\'s "one" $HOME `two`\nand \\three'
WITHIN_S = 60.0

pytestmark = [
    pytest.mark.skipif(shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no sshd"),
    pytest.mark.skipif(os.geteuid() == 0 and not Path("/run/sshd").is_dir(), reason="root's sshd needs /run/sshd"),
]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.02)


class Job:
    """A job's folder, in which programs run as steps of its would on one node."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tmp = folder / "job", folder / "t"
        self.folder.mkdir(0o700)
        self.tmp.mkdir()
        self.environment = {"SLURMD_NODENAME": NODE, "SLURM_JOB_ID": JOB, "SLURM_STEP_ID": "0", "ODD": ODD}
        self.environment |= {"TMPDIR": str(self.tmp), "PATH": os.environ["PATH"], "BASH_FUNC_f%%": "() { :; }"}
        self.running: list[subprocess.Popen[str]] = []
        self.now = 0.0
        for name, text in programs.texts().items():
            (self.folder / name).write_text(text)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
        self.key = folder / "key"
        self.within_s = WITHIN_S  # for a server to end
        # A relay says its first byte at once, unless a busy computer gives it no processor just then.
        self.change(programs.SERVER, "HAND_OVER_S = 1.0", "HAND_OVER_S = 20.0")
        shutil.copy(folder / "key.pub", self.folder / "authorized_keys")

    def change(self, program: str, before: str, after: str) -> None:
        file = self.folder / program
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))

    def program(self, name: str, *arguments: str) -> list[str]:
        return [sys.executable, "-I", "-S", str(self.folder / name), str(self.folder), *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        server = subprocess.Popen(
            self.program(programs.SERVER, "--lease=60", *arguments),
            env=self.environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(server)
        until(lambda: self.file.exists() or server.poll() is not None)
        return server

    @property
    def file(self) -> Path:
        return self.folder / "nodes" / NODE

    @property
    def clock(self) -> str:
        """The file with the time, for programs that are changed to go by it."""
        return str(self.folder.parent / "clock")

    def passes(self, seconds: float) -> None:
        self.now += seconds
        Path(f"{self.clock}.new").write_text(str(self.now))
        Path(f"{self.clock}.new").rename(self.clock)

    def looks(self, server: subprocess.Popen[str]) -> None:
        """Wait until the server has looked at its lease at least twice: each time it reads the clock twice."""
        reads = Path(f"{self.clock}.read")
        before = reads.stat().st_size
        until(lambda: reads.stat().st_size >= before + 6 or server.poll() is not None)
        assert server.poll() is None

    def said(self) -> dict[str, str]:
        return json.loads(self.file.read_text())

    def ssh(
        self, command: str, *, key: Path | None = None, through: list[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        known = self.folder.parent / "known_hosts"
        known.write_text(f"step {self.said()['host_key']}\n")
        options = {
            "ProxyCommand": shlex.join(through or self.program(programs.RELAY)),
            "UserKnownHostsFile": str(known),
        }
        options |= {"HostKeyAlias": "step", "StrictHostKeyChecking": "yes", "BatchMode": "yes", "IdentitiesOnly": "yes"}
        given = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        argv = ["ssh", "-F", os.devnull, "-i", str(key or self.key), *given, f"{self.said()['user']}@step", command]
        return subprocess.run(argv, env=self.environment, capture_output=True, text=True, timeout=WITHIN_S, check=False)

    def left(self) -> list[str]:
        return [path.name for path in self.tmp.iterdir()]


@pytest.fixture
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("s"))
    yield made
    for server in made.running:
        if server.returncode is None:
            server.send_signal(signal.SIGINT)
            ended(server)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def ended(server: subprocess.Popen[str]) -> tuple[int, str]:
    said = server.communicate(timeout=WITHIN_S)[1]
    return server.returncode, said


@pytest.mark.parametrize("name", [programs.SERVER, programs.RELAY])
def test_old_pythons_understand_it(name):
    """Of 3.6, the one of Debian 9 and RHEL 8. What it imports has been there as long."""
    text = programs.texts()[name]
    found = ast.parse(text, feature_version=(3, 6))
    imported = {alias.name for each in ast.walk(found) if isinstance(each, ast.Import) for alias in each.names}
    assert imported <= sys.stdlib_module_names
    assert not [each for each in ast.walk(found) if isinstance(each, ast.ImportFrom)]  # nor a later __future__
    annotations = [
        each
        for function in ast.walk(found)
        if isinstance(function, ast.FunctionDef)
        for each in [function.returns, *(argument.annotation for argument in function.args.args)]
    ]
    assert not [each for each in annotations if isinstance(each, ast.Subscript | ast.BinOp)]  # such ones are quoted


def test_a_connection_has_the_variables_of_the_step(job):
    job.start()
    done = job.ssh('printf "%s|" "$SLURM_JOB_ID" "$ODD" "$TMPDIR" "${SSH_ORIGINAL_COMMAND-none}"; env >&2; exit 3')
    assert (done.returncode, done.stdout) == (3, f"{JOB}|{ODD}|{job.tmp}|none|")
    assert job.said().items() >= {"job": JOB, "step": f"{JOB}.0", "node": NODE}.items()
    assert (job.folder / "nodes").stat().st_mode & 0o777 == 0o700
    assert Path(job.said()["socket"]).parent.stat().st_mode & 0o777 == 0o700


def test_a_relay_gives_its_streams_away_and_tells_the_errors_of_who_uses_them(job):
    job.start()
    given = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(job.program(programs.RELAY), env=job.environment, **given) as relay:
        assert relay.stdout is not None
        assert relay.stdin is not None
        assert relay.stdout.readline().startswith(b"SSH-2.0-")
        until(lambda: {Path(f"/proc/{relay.pid}/fd/{end}").readlink() for end in (0, 1)} == {Path(os.devnull)})
        relay.stdin.write(b"this is no client\r\n" * 2000)
        _, said = relay.communicate(timeout=WITHIN_S)
    assert relay.returncode == 0
    assert b"client" in said or b"identification" in said, said


def test_a_relay_ends_with_its_client(job):
    job.start()
    with subprocess.Popen(
        job.program(programs.RELAY), env=job.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as relay:
        assert relay.stdout is not None
        assert relay.stdin is not None
        assert relay.stdout.readline().startswith(b"SSH-2.0-")
        relay.stdin.close()
        assert relay.wait(WITHIN_S) == 0


def test_a_connection_that_says_nothing_keeps_nobody_out_for_long(job):
    job.change(programs.SERVER, "HAND_OVER_S = 20.0", "HAND_OVER_S = 3.0")
    server = job.start()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.connect(job.said()["socket"])
        # Also the relay of who comes after it has but so long for its first byte, and may have no turn in that time.
        until(lambda: job.ssh("echo in").stdout == "in\n")
        assert silent.recv(1) == b""  # it was hung up
    assert server.poll() is None


def test_framed_relays_carry_much_both_ways_and_the_commands_end(job):
    """Through a command that sends pieces of at most 1024 bytes, as Slurm does."""
    python, relay = [sys.executable, "-I", "-S"], str(job.folder / programs.RELAY)
    pieces = "dd bs=1000 status=none"
    node = shlex.join([*python, relay, "--framed", str(job.folder)])
    through = [*python, relay, "--run", "sh", "-c", f"{pieces} | {node} | {pieces}; exit 7"]
    job.start()
    done = job.ssh("head -c 3000000 /dev/zero | tr '\\0' x; wc -c; exit 3", through=through)
    assert (done.returncode, done.stdout) == (3, "x" * 3_000_000 + "0\n")
    ran = subprocess.run(
        [*python, relay, "--run", "sh", "-c", "echo no step >&2; exit 5"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout, ran.stderr) == (5, "", "no step\n")


STALLED = """
import sys, time
first, rest = b"\\0\\0\\0\\5he", b"llo"
sys.stdout.buffer.write(first)
sys.stdout.flush()
answer = sys.stdin.buffer.raw.read(4)
sys.stdout.buffer.write(rest if answer == b"\\0\\0\\0\\0" else b"bad")
"""


def test_a_relay_whose_frame_has_stopped_half_way_makes_the_other_end_go_on(job):
    relay = [sys.executable, "-I", "-S", str(job.folder / programs.RELAY), "--run", sys.executable, "-c", STALLED]
    done = subprocess.Popen(relay, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with done:
        assert done.stdout is not None
        assert done.stdout.read() == b"hello"


def test_a_frame_is_passed_on_whole_or_in_large_parts(monkeypatch):
    """Each small piece would be one for all who carry it further."""
    monkeypatch.syspath_prepend(Path(programs.__file__).parent)
    import relay

    (source, there), (here, sink) = os.pipe(), os.pipe()
    try:
        framed = relay.Framed(relay.Side(source, sink))
        os.write(there, relay.LENGTH.pack(3000) + b"a" * 1000)
        assert framed.read() == b""
        os.write(there, b"b" * 1999)
        assert framed.read() == b""
        assert framed.stalled
        assert framed.nudge() == b"a" * 1000 + b"b" * 1999  # where the rest does not come, what has come is passed on
        assert os.read(here, 100) == relay.EMPTY
        os.write(there, b"c" + relay.LENGTH.pack(5) + b"whole" + relay.LENGTH.pack(200_000) + b"d" * 10)
        assert framed.read() == b"cwhole" + b"d" * 10
        assert framed.much_left()
        for _ in range(relay.PART_BYTES // 4096 - 1):
            os.write(there, b"e" * 4096)
            assert framed.read() == b""
        os.write(there, b"f" * 4096)
        assert len(framed.read()) == relay.PART_BYTES
        os.write(there, b"g")
        assert framed.read() == b""
        os.close(there)
        assert framed.read() == b"g"  # nothing is lost where the frame's end never comes
        assert not framed.open
    finally:
        for end in (source, here, sink):
            os.close(end)


HANGS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sys.stdout.buffer.write(b"\\0\\0\\0\\2hi")
sys.stdout.flush()
time.sleep(1000)
"""


def test_a_relay_whose_node_hangs_ends_after_its_client(job):
    job.change(programs.RELAY, "LINGER_S = 15.0", "LINGER_S = 0.3")
    job.change(programs.RELAY, "KILL_S = 5.0", "KILL_S = 0.2")
    relay = [sys.executable, "-I", "-S", str(job.folder / programs.RELAY), "--run", sys.executable, "-c", HANGS]
    with subprocess.Popen(relay, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert done.stdin is not None
        assert done.stdout.read(2) == b"hi"
        time.sleep(0.8)
        assert done.poll() is None  # its client is there
        done.stdin.close()
        assert done.wait(WITHIN_S) == -signal.SIGKILL % 256


OBEYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("told", file=sys.stderr, flush=True), sys.exit(3)))
sys.stdout.buffer.write(b"\\0\\0\\0\\2hi")
sys.stdout.flush()
while True:  # a signal that comes just before a call that waits would not end that
    time.sleep(0.01)
"""


def test_a_relay_that_is_sent_sigterm_ends_its_command(job):
    job.change(programs.RELAY, "KILL_S = 5.0", "KILL_S = 60.0")
    relay = [sys.executable, "-I", "-S", str(job.folder / programs.RELAY), "--run", sys.executable, "-c", OBEYS]
    with subprocess.Popen(relay, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        assert done.stdout is not None
        assert done.stdout.read(2) == b"hi"
        done.send_signal(signal.SIGTERM)
        assert done.communicate(timeout=WITHIN_S)[1] == b"told\n"


CHILD = """
import socket, sys
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), flush=True)
sys.stdin.readline()
print(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), flush=True)
"""


def test_what_a_childs_sockets_are_given_is_sent_at_once(monkeypatch):
    monkeypatch.syspath_prepend(Path(programs.__file__).parent)
    import relay

    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [sys.executable, "-c", CHILD, str(server.getsockname()[1])]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            connection, _ = server.accept()
            assert child.stdout.readline() == "0\n"
            could = relay.prompt(child.pid)
            child.stdin.write("go on\n")
            child.stdin.flush()
            assert bool(int(child.stdout.readline())) == could
            connection.close()
    if not could:
        pytest.skip("this kernel gives no process the files of another")


def test_another_key_is_let_in_nowhere(job, tmp_path):
    job.start()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "other")], check=True)
    refused = job.ssh("true", key=tmp_path / "other")
    assert refused.returncode == 255
    assert "Permission denied (publickey)" in refused.stderr


def test_at_its_end_nothing_runs_and_no_file_is_left(job):
    server = job.start()
    [pid] = map(int, job.ssh("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").stdout.split())
    assert alive(pid)
    (job.folder / "end.other").touch()
    time.sleep(1.2)
    assert server.poll() is None
    (job.folder / f"end.{NODE}").touch()
    assert ended(server) == (0, f"outrider: the step on {NODE} ends: its client has said so\n")
    assert not alive(pid)
    assert [*job.left(), *(job.folder / "nodes").iterdir()] == []


def test_an_end_for_all_is_obeyed_at_once_on_sigterm(job):
    job.change(programs.SERVER, "LOOK_S = 1.0", "LOOK_S = 1000.0")
    server = job.start()
    assert job.ssh("setsid sleep 1000 </dev/null >/dev/null 2>&1 & ").returncode == 0
    (job.folder / "end").touch()
    server.send_signal(signal.SIGTERM)
    assert "its client has said so" in ended(server)[1]


CLOCK = """
def monotonic():
    with open({clock!r} + ".read", "a") as reads:
        reads.write(".")
    with open({clock!r}) as now:
        return float(now.read())

time.monotonic = monotonic
"""


def test_it_ends_when_nobody_has_renewed_its_lease(job):
    """By a clock of the test's: whoever stands still for a while, the server or this process, changes nothing."""
    job.change(programs.SERVER, "LOOK_S = 1.0", "LOOK_S = 0.05")
    job.change(programs.SERVER, "import time\n", f"import time\n{CLOCK.format(clock=job.clock)}")
    job.passes(0.0)
    server = job.start("--lease=100")  # and 30 s, as its client has to hear of it first
    lease = Path(job.said()["lease"])
    for _ in range(5):
        job.passes(90.0)
        job.looks(server)
        lease.touch()
        job.looks(server)  # else it may have looked before that, and read the clock after what passes now
    job.passes(99.0)
    job.looks(server)
    job.passes(101.0)
    code, said = ended(server)
    assert (code, "nobody has renewed its lease for 100 s" in said) == (0, True)
    assert job.left() == []


def test_one_whose_client_is_gone_becomes_the_program_for_the_last_step(job):
    job.change(programs.SERVER, "FIRST_LEASE_S = 30.0", "FIRST_LEASE_S = 0.0")
    (job.folder / programs.LAST).write_text("import sys\nsys.exit('for ' + ' '.join(sys.argv[1:]))\n")
    code, said = ended(job.start("--lease=0.2", "--batch-node=c9"))
    assert (code, said.splitlines()[-1]) == (1, f"for {job.folder} c9")
    assert job.left() == []


def test_one_that_its_client_ends_does_not(job):
    server = job.start("--batch-node=c9")
    (job.folder / "end").touch()
    assert ended(server)[0] == 0


def test_it_ends_with_its_lifetime_whoever_speaks(job):
    job.change(programs.SERVER, "LOOK_S = 1.0", "LOOK_S = 0.05")
    assert "its lifetime of 0.5 s is over" in ended(job.start("--lifetime=0.5"))[1]


def test_a_preemption_is_a_notice_while_something_runs(job):
    server = job.start("--grace=17")
    notice = Path(job.said()["notice"])
    pid = int(job.ssh("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").stdout)
    server.send_signal(signal.SIGTERM)
    until(notice.exists)
    assert notice.read_text() == "17"
    assert job.ssh("echo still here").stdout == "still here\n"
    assert server.poll() is None
    os.kill(pid, signal.SIGKILL)
    assert ended(server) == (0, f"outrider: the step on {NODE} ends: Slurm ends it, and nothing runs in it\n")


def test_a_step_in_which_nothing_runs_obeys_sigterm(job):
    server = job.start()
    server.send_signal(signal.SIGTERM)
    assert ended(server)[0] == 0


def test_the_time_limit_is_a_notice_and_the_sooner_one_counts(job):
    server = job.start("--grace=30")
    notice = Path(job.said()["notice"])
    job.ssh("setsid sleep 1000 </dev/null >/dev/null 2>&1 &")
    (job.folder / "limit").write_text("90\n")
    until(notice.exists)
    assert notice.read_text() == "90"
    server.send_signal(signal.SIGTERM)
    until(lambda: notice.read_text() == "30")


def test_signals_for_others_end_nothing_and_are_ignored_by_none(job):
    server = job.start()
    others = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
    for number in others:
        server.send_signal(number)
    ignored = int(job.ssh("grep SigIgn /proc/self/status").stdout.split()[1], 16)
    assert [number for number in (*others, signal.SIGTERM, signal.SIGINT) if ignored >> (number - 1) & 1] == []


def test_a_node_without_sshd_says_so(job):
    job.change(programs.SERVER, "WHERE_SSHD_IS = (", "WHERE_SSHD_IS = ('/nowhere',)\nNOT_USED = (")
    job.environment["PATH"] = str(job.tmp)
    server = job.start()
    code, said = ended(server)
    assert code == 1
    assert f"node {NODE} has no sshd, in PATH or /nowhere: have its administrators" in said
    assert job.said()["error"] in said
    relay = subprocess.run(
        job.program(programs.RELAY), env=job.environment, capture_output=True, text=True, check=False
    )
    assert (relay.returncode, relay.stderr) == (1, f"outrider: {job.said()['error']}\n")
    assert job.left() == []


def test_a_job_whose_folder_is_gone_makes_none(job):
    shutil.copy(job.folder / programs.SERVER, job.tmp.parent / "server.py")
    shutil.rmtree(job.folder)
    argv = [sys.executable, "-I", "-S", str(job.tmp.parent / "server.py"), str(job.folder), "--lease=9"]
    done = subprocess.run(argv, env=job.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "authorized_keys cannot be read on node c0: No such file or directory" in done.stderr
    assert not job.folder.exists()


def test_what_a_killed_server_has_left_goes_with_the_next(job):
    server = job.start()
    server.kill()
    server.communicate()
    [left] = job.left()
    (job.tmp / "outrider-step-in-the-making").mkdir()
    job.file.unlink()
    job.start()
    found = job.left()
    assert left not in found
    assert len(found) == 2  # the new one's, and the one of which it cannot be known whose it is


def test_a_relay_waits_for_a_step_that_has_just_begun(job):
    job.change(programs.RELAY, "WAIT_S = 5.0", "WAIT_S = 0.3")
    done = subprocess.run(job.program(programs.RELAY), env=job.environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        1,
        f"outrider: no step of Outrider's runs on this node, as there is no {job.file}\n",
    )


def test_a_relay_that_waits_for_a_step_ends_when_its_client_hangs_up(job):
    """Where it is in a job of its user's that is about to end, Slurm would wait for it."""
    job.change(programs.RELAY, "WAIT_S = 5.0", "WAIT_S = 600.0")
    ours, theirs = socket.socketpair()
    for written in (os.pipe(), (theirs.detach(), ours.detach())):
        reads, writes = written
        os.write(writes, b"SSH-2.0-what nobody has read yet")
        with subprocess.Popen(
            job.program(programs.RELAY), env=job.environment, stdin=reads, stderr=subprocess.PIPE
        ) as done:
            os.close(reads)
            time.sleep(0.2)
            assert done.poll() is None
            os.close(writes)
            assert b"nobody wants the connection" in done.communicate(timeout=WITHIN_S)[1]


# --- the invariants, and what breaks them -----------------------------------------------------------------------------


def holds_step_1(job: Job) -> None:
    """STEP-1."""
    job.change(programs.SERVER, "FIRST_LEASE_S = 30.0", "FIRST_LEASE_S = 0.0")
    job.change(programs.SERVER, "LOOK_S = 1.0", "LOOK_S = 0.05")
    server = job.start("--lease=0.2")
    assert "nobody has renewed" in server.communicate(timeout=job.within_s)[1]


def holds_step_2(job: Job) -> None:
    """STEP-2."""
    server = job.start()
    pid = int(job.ssh("setsid sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").stdout)
    server.send_signal(signal.SIGINT)
    ended(server)
    if alive(pid):
        os.kill(pid, signal.SIGKILL)
        pytest.fail("something runs on")
    assert job.left() == []


def holds_step_3(job: Job) -> None:
    """STEP-3."""
    job.environment |= {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "PMI_RANK": "3", "SLURM_CPUS_ON_NODE": "8"}
    job.start()
    assert job.ssh("echo $SLURM_PROCID $SLURM_NTASKS $PMI_RANK $SLURM_CPUS_ON_NODE").stdout == "8\n"
    assert job.ssh('printf %s "$ODD"').stdout == ODD


BROKEN = {
    "STEP-1": (holds_step_1, "return now >= self._ends", "return False"),
    "STEP-2": (holds_step_2, "        end_descendants(KILL_S)\n", ""),
    "STEP-3": (holds_step_3, """each.replace(b"'", b"'\\\\''")""", "each"),
}


@pytest.mark.parametrize("invariant", BROKEN)
def test_the_invariant_holds(job, invariant):
    BROKEN[invariant][0](job)


@pytest.mark.parametrize("invariant", BROKEN)
def test_the_invariant_falls_without_its_guard(job, invariant):
    holds, guard, instead = BROKEN[invariant]
    job.change(programs.SERVER, guard, instead)
    job.within_s = 3.0  # what does not happen is waited for so long
    with pytest.raises((AssertionError, pytest.fail.Exception, subprocess.TimeoutExpired)):
        holds(job)
