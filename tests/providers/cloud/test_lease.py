"""The lease script in real shells, on a clock of the test's: it runs until the script sleeps, and the test goes on."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from outrider.providers.aws.catalogue import VENDOR
from outrider.providers.cloud.machine_start import HostKey, lease_script, user_data

PATIENCE_S = 60.0
TOOLS = ("stat", "touch", "rm", "mkdir", "timeout", "setsid", "cat")  # all that the script can reach
SHELLS = ("dash", "busybox", "bash")  # Debian's and Ubuntu's sh, the smallest images', Amazon Linux's
NOBODY = 60_000 + os.getpid() % 5_000  # a user who runs nothing else, nor does one of another process of the tests
PROCESSES = 8  # that it may have

ASK = """\
#!/bin/sh
echo "$0 $*" >>"$RIG/asked"
exit "$(cat "$RIG/status")"
"""
SLEEP = """\
#!/bin/sh
echo "$1" >"$RIG/sleeps"
read -r _ <"$RIG/wakes"
"""
SYSTEMD_RUN = """\
#!/bin/sh
echo "$*" >"$RIG/systemd-run"
while [ "$1" != /bin/sh ]; do shift; done
shift
[ -e "$RIG/refuses" ] && exit 1
setsid sh "$@" </dev/null >/dev/null 2>&1 &
"""


class Machine:
    """What the script sees of one: a clock, a folder, and a PATH on which powering off leaves a line in a file."""

    def __init__(self, folder: Path, shell: str) -> None:
        self.folder, self.tools, self.run = folder, folder / "bin", folder / "run" / "outrider"
        self.script, self.lease = self.run / "lease.sh", self.run / "lease"
        self.now = 50
        for each in (self.tools, self.run, folder / "proc"):
            each.mkdir(parents=True)
        found = shutil.which(shell)
        if found is None:
            pytest.skip(f"there is no {shell} here")
        for name in ("sh", *TOOLS):
            real = found if name == "sh" or shell == "busybox" else shutil.which(name)
            assert real is not None, name
            (self.tools / name).symlink_to(real)
        for name, text in {"poweroff": ASK, "shutdown": ASK, "sleep": SLEEP}.items():
            self.add_tool(name, text)
        self.env = {"PATH": str(self.tools), "OUTRIDER_ROOT": str(folder), "RIG": str(folder)}
        for name in ("poweroff", "shutdown", "sleep"):  # a busybox may prefer its own: then it is not to be asked
            check = [str(self.tools / "sh"), "-c", f"command -v {name}"]
            if subprocess.check_output(check, env=self.env, text=True).strip() != str(self.tools / name):
                pytest.skip(f"this {shell} does not run what is on PATH")
        (folder / "status").write_text("0")
        self.script.write_text(lease_script())
        self.tick(0)
        for name in ("sleeps", "wakes"):
            os.mkfifo(folder / name)
        self._sleeps, self._wakes = (os.open(folder / name, os.O_RDWR) for name in ("sleeps", "wakes"))
        self._on_changes = b""
        self.process: subprocess.Popen[bytes] | None = None

    def add_tool(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    # --- the clock ------------------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        self.now += int(seconds)
        (self.folder / "proc" / "uptime").write_text(f"{self.now}.42 17.00\n")

    def asleep(self, within_s: float = PATIENCE_S) -> float:
        """Wait until the script sleeps; for how long it wants to."""
        while b"\n" not in self._on_changes:
            ready, _, _ = select.select([self._sleeps], [], [], within_s)
            assert ready, "the script neither sleeps nor ends"
            self._on_changes += os.read(self._sleeps, 100)
        line, _, self._on_changes = self._on_changes.partition(b"\n")
        return float(line)

    def wake(self, seconds: float) -> None:
        self.tick(seconds)
        os.write(self._wakes, b"\n")

    def passes(self, seconds: float) -> None:
        """Time in which nothing happens; the script sleeps before and after it."""
        until = self.now + seconds
        while self.now < until:
            self.wake(min(self.step, until - self.now))
            self.step = self.asleep()

    def ends_after(self, limit_s: float = 1000) -> float:
        """Seconds until it is powered off for the first time."""
        began = self.now
        while not self.asked:
            assert self.now - began < limit_s, "it is never powered off"
            self.passes(self.step)
        return self.now - began

    # --- the script -----------------------------------------------------------------------------------------------

    def watch(self, lease_s: int = 20, grace_s: int = 5, lifetime_s: int = 0, armed_at: int | None = None,
              user: int | None = None) -> None:  # fmt: skip
        """Start it, until it sleeps for the first time."""
        limit = [] if user is None else [shutil.which("prlimit") or "prlimit", f"--nproc={PROCESSES}"]
        arguments = (lease_s, grace_s, lifetime_s, self.now if armed_at is None else armed_at)
        self.process = subprocess.Popen(
            [*limit, str(self.tools / "sh"), self.script, "watch", *map(str, arguments)],
            env=self.env, start_new_session=True, stdin=subprocess.DEVNULL, user=user,
        )  # fmt: skip
        self.step = self.asleep()

    def renew(self) -> None:
        os.utime(self.lease)

    @property
    def asked(self) -> list[str]:
        asked = self.folder / "asked"
        return re.findall(r"/(poweroff|shutdown -P now)\s*\n", asked.read_text()) if asked.exists() else []

    def processes(self) -> list[int]:
        """All that runs with this machine's PATH."""
        mark, found = f"RIG={self.folder}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def close(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while running := self.processes():
            assert time.monotonic() < deadline
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.wait()
        os.close(self._sleeps)
        os.close(self._wakes)


@pytest.fixture(params=SHELLS)
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, request.param)
    yield machine
    machine.close()


# --- when it ends -----------------------------------------------------------------------------------------------------


def test_machine_without_renewal_powers_off(machine: Machine) -> None:
    machine.watch(20, 5)
    assert machine.ends_after() == pytest.approx(26, abs=1)  # the lease, the grace, a tick of 2 s
    assert machine.asked == ["poweroff"]


def test_renewed_machine_lives_and_has_no_grace_later(machine: Machine) -> None:
    machine.watch(20, 5)
    for _ in range(6):
        machine.passes(16)
        machine.renew()
    assert machine.asked == []
    assert 20 <= machine.ends_after() <= 24


def test_its_lifetime_ends_whoever_renews(machine: Machine) -> None:
    machine.watch(20, 5, lifetime_s=100)
    for _ in range(9):
        machine.passes(10)
        machine.renew()
    assert machine.asked == []
    assert machine.ends_after() == pytest.approx(10, abs=2)


def test_clocks_may_be_set(machine: Machine) -> None:
    """Years ahead, years back: each is a renewal, because somebody wrote it, and nothing else comes of it."""
    machine.watch(20, 5)
    for at in (4e9, 1e9, 0.0, 1.7e9):
        machine.passes(16)
        os.utime(machine.lease, (at, at))
    machine.passes(18)
    assert machine.asked == []
    assert machine.ends_after() <= 6


def test_a_file_that_is_gone_is_not_renewed_and_may_come_back(machine: Machine) -> None:
    machine.watch(20, 5)
    machine.renew()
    machine.passes(10)
    machine.lease.unlink()
    machine.passes(8)
    machine.lease.touch()
    machine.passes(18)
    assert machine.asked == []
    machine.lease.unlink()
    assert machine.ends_after() <= 6


def test_without_an_uptime_time_goes_on(machine: Machine) -> None:
    machine.watch(20, 5)
    (machine.folder / "proc" / "uptime").unlink()
    (machine.folder / "proc" / "uptime").mkdir()  # and is not written again
    for _ in range(13):
        assert machine.asked == []
        os.write(machine._wakes, b"\n")
        machine.asleep()
    assert machine.asked == ["poweroff"]


def test_a_stop_that_outlasts_the_lease_ends_it(machine: Machine) -> None:
    machine.watch(20, 5)
    machine.wake(1000)
    machine.asleep()
    assert machine.asked == ["poweroff"]


def test_signals_do_not_end_the_lease(machine: Machine) -> None:
    machine.watch(20, 5)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        os.killpg(machine.process.pid, number)
    assert machine.ends_after() <= 28


def test_powering_off_is_tried_for_ever_and_renewals_come_too_late(machine: Machine) -> None:
    (machine.folder / "status").write_text("1")
    machine.watch(20, 5)
    machine.ends_after()
    for count in range(2, 6):
        machine.renew()
        machine.passes(machine.step)
        assert machine.asked == ["poweroff", "shutdown -P now"] * count
    os.kill(machine.process.pid, signal.SIGTERM)  # still
    machine.passes(machine.step)
    assert len(machine.asked) == 12


def test_when_it_powers_off_it_does_not_keep_the_shutdown_waiting(machine: Machine) -> None:
    machine.watch(20, 5)
    machine.ends_after()
    machine.process.terminate()
    assert machine.process.wait(PATIENCE_S) == -signal.SIGTERM


def test_without_poweroff_there_is_shutdown_and_without_timeout_both(machine: Machine) -> None:
    (machine.tools / "poweroff").unlink()
    (machine.tools / "timeout").unlink()
    machine.watch(20, 5)
    machine.ends_after()
    assert machine.asked == ["shutdown -P now"]


def test_started_again_it_has_no_more_grace(machine: Machine) -> None:
    machine.watch(20, 30, armed_at=machine.now - 45)
    assert machine.ends_after() == pytest.approx(20, abs=2)


@pytest.mark.parametrize(("lease_s", "tick_s"), [(2, 1), (20, 2), (120, 5)])
def test_lease_is_checked_at_the_right_interval(machine: Machine, lease_s: int, tick_s: int) -> None:
    machine.watch(lease_s)
    assert machine.step == tick_s


def test_any_user_may_renew_and_nobody_else_may_take_the_file_away(machine: Machine) -> None:
    machine.watch()
    assert machine.lease.stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.getuid() != 0, reason="only root may run it as somebody else, who can have a limit")
@pytest.mark.parametrize("shell", ["dash", "busybox"])  # bash ends there, and systemd starts it again
def test_where_no_process_can_be_made_it_waits_until_one_can(shell: str) -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        machine = Machine(folder, shell)
        try:
            for each in (folder, machine.run, folder / "sleeps", folder / "wakes"):
                os.chown(each, NOBODY, NOBODY)
            machine.watch(20, 5, user=NOBODY)
            others = [
                subprocess.Popen([shutil.which("sleep") or "sleep", "100"], user=NOBODY) for _ in range(PROCESSES)
            ]
            machine.wake(2)  # it goes round and round now
            with pytest.raises(AssertionError, match="neither sleeps nor ends"):
                machine.asleep(0.1)
            for other in others:
                other.kill()
                other.wait()
            machine.step = machine.asleep()
            machine.renew()
            machine.passes(16)
            assert machine.asked == []
            assert machine.ends_after() <= 8
        finally:
            machine.close()
    finally:
        shutil.rmtree(folder)


# --- arming -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def booting(machine: Machine) -> Machine:
    """One whose script sleeps by itself, for 10 ms whatever it wants."""
    machine.add_tool("sleep", f"#!/bin/sh\nexec {shutil.which('sleep')} 0.01\n")
    machine.script.unlink()
    machine.run.rmdir()
    return machine


def boot(machine: Machine, lease_s: float = 20, max_lifetime_s: float | None = None) -> int:
    """What cloud-init does first; the exit status."""
    key = HostKey("private", "public")
    text = user_data(VENDOR, host_key=key, client_key="key", user="me", lease_s=lease_s, max_lifetime_s=max_lifetime_s)
    words = json.loads(text.partition("\n")[2])["bootcmd"][0]
    assert words[4] == "/run/outrider"
    words[4] = str(machine.run)
    log = subprocess.PIPE  # which the watch would keep open, did it not leave its caller
    return subprocess.run(words, env=machine.env, stdout=log, stderr=log, timeout=PATIENCE_S, check=False).returncode


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def watches(machine: Machine) -> list[list[str]]:
    """The arguments of every watch that runs. What one has forked is called like it for a moment."""
    words, parents = {}, {}
    for pid in machine.processes():
        with suppress(OSError):  # it has ended meanwhile
            parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            words[pid] = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    found = {pid: line[line.index("watch") :] for pid, line in words.items() if "watch" in line}
    return [line for pid, line in found.items() if parents[pid] not in found]


def test_the_first_boot_command_arms_it_and_returns(booting: Machine) -> None:
    assert boot(booting, 20, 3600) == 0
    assert booting.lease.stat().st_mode & 0o777 == 0o666
    assert booting.run.stat().st_mode & 0o777 == 0o755
    assert watches(booting) == [["watch", "20", "30", "3600", "50"]]
    booting.tick(49)
    assert booting.asked == []
    booting.tick(1)
    until(lambda: booting.asked)


def test_lease_runs_in_its_own_session(booting: Machine) -> None:
    boot(booting)
    sessions = set()
    for pid in booting.processes():
        with suppress(ProcessLookupError):
            sessions.add(os.getsid(pid))
    assert len(sessions) == 1
    assert os.getsid(0) not in sessions


def test_without_setsid_it_is_armed_too(booting: Machine) -> None:
    (booting.tools / "setsid").unlink()
    (booting.tools / "nohup").symlink_to(shutil.which("nohup") or "/nohup")
    assert boot(booting) == 0
    assert len(watches(booting)) == 1


def test_armed_twice_it_is_watched_twice(booting: Machine) -> None:
    assert boot(booting) == 0
    assert boot(booting, 30) == 0
    assert sorted(words[1] for words in watches(booting)) == ["20", "30"]
    booting.tick(1000)
    until(lambda: booting.asked)


@pytest.mark.parametrize("broken", [False, True])
def test_systemd_keeps_it_where_there_is_one(booting: Machine, broken: bool) -> None:
    (booting.folder / "run" / "systemd" / "system").mkdir(parents=True)
    booting.add_tool("systemd-run", SYSTEMD_RUN)
    if broken:
        (booting.folder / "refuses").touch()
    assert boot(booting) == 0
    assert len(watches(booting)) == 1
    asked = (booting.folder / "systemd-run").read_text()
    assert f"/bin/sh {booting.script} watch 20 30 0 50\n" in asked
    assert "--no-block" in asked
    assert "--property=DefaultDependencies=no" in asked
    assert f"--setenv=PATH={booting.tools}" in asked


@pytest.mark.parametrize("missing", ["touch", "mkdir", "setsid"])
def test_a_machine_that_cannot_be_watched_ends_at_once(booting: Machine, missing: str) -> None:
    """Whatever an earlier watch has left."""
    booting.run.mkdir()
    booting.lease.touch()
    (booting.tools / missing).unlink()
    boot(booting)
    assert booting.asked == ["poweroff"]


# --- what it may do ---------------------------------------------------------------------------------------------------


def test_it_powers_off_by_the_names_on_path_alone() -> None:
    code = re.sub(r"(^|\s)#.*", "", lease_script(), flags=re.MULTILINE)
    assert not re.search(r"sysrq|reboot|halt|/s?bin/(?!sh\b)|PATH=(?!\"\$PATH\")|--force|poweroff -", code)
