"""The batch script, as bash and a made-up srun run it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from outrider.providers.slurm import script
from outrider.providers.slurm.script import LIMIT, Script, own_arguments, relay, signal_s

SRUN = """#!/bin/bash
echo "$@" >>"$FAKE/sruns"
for each in "$@"; do case $each in --nodelist=*) node=${each#*=};; esac; done
until [ -e "$FAKE/end-$node" ] || [ -e "$FAKE/over" ]; do sleep 0.02; done
[ ! -e "$FAKE/killed-$node" ] || exit 137
"""
SCONTROL = '#!/bin/bash\necho "$3" | tr , "\\n"\n'


class Site:
    """A folder with programs of Slurm's names, and one with a job's files."""

    def __init__(self, path: Path) -> None:
        self.fake, self.folder = path / "fake", path / "job"
        self.fake.mkdir()
        self.folder.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (self.fake / name).write_text(text)
            (self.fake / name).chmod(0o755)
        self.begun: list[subprocess.Popen[bytes]] = []
        self.within_s = 60.0  # for what is to happen

    def start(self, text: str, nodes: str = "c0,c1") -> subprocess.Popen[bytes]:
        path = f"{self.fake}:{os.environ['PATH']}"
        env = {"PATH": path, "FAKE": str(self.fake), "SLURM_JOB_NODELIST": nodes, "SLURMD_NODENAME": "c0"}
        self.begun.append(subprocess.Popen(["bash", "-c", text], env=env, cwd=self.fake))
        return self.begun[-1]

    def sruns(self) -> list[str]:
        path = self.fake / "sruns"
        return path.read_text().splitlines() if path.exists() else []

    def end(self, *nodes: str) -> None:
        for node in nodes:
            (self.fake / f"end-{node}").touch()

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + self.within_s
        while not condition():
            assert time.monotonic() < end, "it did not come true"
            time.sleep(0.01)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    (made.fake / "over").touch()
    for each in made.begun:
        each.wait(60)


def holds_script_1(site: Site) -> None:
    done = site.start(script.Script(folder=str(site.folder), lease_s=30).text())
    site.until(lambda: len(site.sruns()) == 2)
    for node, line in zip(["c0", "c1"], sorted(site.sruns()), strict=True):
        assert f"--nodelist={node} " in line
        assert line.endswith(
            f"python3 -I -S {site.folder}/step_server.py {site.folder} --lease=30 --grace=30 --batch-node=c0"
        )
    site.end("c0", "c1")
    assert done.wait(site.within_s) == 0


def holds_script_3(site: Site) -> None:
    setup = ["set -eu", 'until [ -e "$FAKE/over" ]; do sleep 0.02; done &']
    shell = site.start(script.Script(folder=str(site.folder), lease_s=30, setup=setup).text())
    site.until(lambda: len(site.sruns()) == 2)
    shell.send_signal(signal.SIGUSR1)
    site.until(lambda: (site.folder / LIMIT).exists())
    assert (site.folder / LIMIT).read_text() == "120\n"
    site.end("c0")
    time.sleep(0.3)
    assert shell.poll() is None
    site.end("c1")
    assert shell.wait(site.within_s) == 0


def holds_script_2(site: Site) -> None:
    (site.folder / "a b; touch stolen").mkdir()
    said = script.Script(folder=str(site.folder / "a b; touch stolen"), lease_s=30, python="/opt/my py\ntouch stolen")
    shell = site.start(said.text(), nodes="c0")
    site.end("c0")
    shell.wait(site.within_s)
    assert list(site.fake.parent.rglob("stolen")) == []


def holds_script_4(site: Site) -> None:
    shell = site.start(script.Script(folder=str(site.folder), lease_s=30).text())
    site.until(lambda: len(site.sruns()) == 2)
    for node in ("c0", "c1"):
        (site.folder / script.NODES / node).touch()
    (site.fake / "killed-c0").touch()
    site.end("c0", "c1")
    assert shell.wait(site.within_s) == 0
    assert [each.name for each in (site.folder / script.NODES).iterdir()] == ["c1"]


def test_each_node_has_a_step_of_its_own(site: Site) -> None:
    """SCRIPT-1."""
    holds_script_1(site)


def test_the_shell_is_told_of_the_limit_and_goes_on_until_the_last_step_ends(site: Site) -> None:
    """SCRIPT-3."""
    holds_script_3(site)


def test_the_file_of_a_node_whose_step_was_killed_goes(site: Site) -> None:
    """SCRIPT-4."""
    holds_script_4(site)


def test_a_folder_is_no_shell(site: Site) -> None:
    """SCRIPT-2."""
    holds_script_2(site)


def test_setup_runs_before_the_steps_and_its_variables_reach_them(site: Site) -> None:
    setup = ["export FAKE=$FAKE MODULE=cuda", 'echo "$MODULE" >"$FAKE/loaded"']
    shell = site.start(Script(folder=str(site.folder), lease_s=30, setup=setup).text())
    site.end("c0", "c1")
    assert shell.wait(site.within_s) == 0
    assert (site.fake / "loaded").read_text() == "cuda\n"


def test_of_a_job_that_is_wanted_less_only_the_first_nodes_have_steps(site: Site) -> None:
    (site.folder / script.WANTED).write_text("1\n")
    shell = site.start(Script(folder=str(site.folder), lease_s=30).text())
    site.end("c0")
    assert shell.wait(site.within_s) == 0
    assert [line.split()[0] for line in site.sruns()] == ["--nodelist=c0"]


BROKEN = {
    "SCRIPT-1": (holds_script_1, "for node in $(scontrol show hostnames", 'for node in "$SLURM_JOB_NODELIST"; do # $('),
    "SCRIPT-3": (holds_script_3, "mv {limit}.new {limit}' USR1", "mv {limit}.new {limit}; exit' USR1"),
    "SCRIPT-3 set": (holds_script_3, "set +eu\n", ""),
    "SCRIPT-3 left": (holds_script_3, 'kill -0 "$step" 2>/dev/null; do wait "$step"', '[ -n "$(jobs -pr)" ]; do wait'),
    "SCRIPT-4": (holds_script_4, '|| rm -f {nodes}/"$node"', ""),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_the_script_falls_without_its_guard(site: Site, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    """Each rule is noticed to be broken by what holds it; see `BROKEN`."""
    holds, guard, instead = BROKEN[rule]
    assert guard in script._SCRIPT
    monkeypatch.setattr(script, "_SCRIPT", script._SCRIPT.replace(guard, instead))
    site.within_s = 4.0  # what does not happen is waited for so long
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        holds(site)


def test_quoting_falls_without_its_guard(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """SCRIPT-2."""

    class Trusting:
        quote, join = staticmethod(str), staticmethod(" ".join)

    monkeypatch.setattr(script, "shlex", Trusting)
    site.within_s = 4.0
    with pytest.raises((AssertionError, subprocess.TimeoutExpired)):
        holds_script_2(site)


def test_the_relay_is_unbuffered() -> None:
    """Without it an SSH handshake hangs: tests/lab/test_slurm.py shows that."""
    command = relay("4711", "c0", "/home/me/job")
    assert command[3:7] == ("/home/me/job/relay.py", "--run", "srun", "-u")
    assert {"--jobid=4711", "--overlap", "--nodelist=c0"} <= set(command)
    assert command[-3:] == ("/home/me/job/relay.py", "--framed", "/home/me/job")


def test_the_relay_over_ssh_is_one_word_for_the_nodes_shell() -> None:
    command = script.ssh_relay("c0", "/home/me/my job")
    assert command[-2:] == ("c0", "python3 -I -S '/home/me/my job/relay.py' '/home/me/my job'")


@pytest.mark.parametrize(
    ("status", "soon_s", "said"),
    [
        (255, 60, "srun has what is sent"),  # refused: as where Slurm has begun to preempt the job
        (255, -1, "ends with 255"),  # it was connected, or the host did not answer
        (1, 60, "ends with 1"),  # the relay's own
        (0, 60, "ends with 0"),
    ],
)
def test_srun_takes_the_place_of_an_ssh_that_is_refused(
    status: int, soon_s: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "REFUSED_S", soon_s)
    programs = {"ssh": f"exit {status}", "python3": 'read -r line; echo "srun has $line"'}
    for name, does in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    command = script.ssh_or_srun_relay("4711", "c0", "/home/me/my job")
    done = subprocess.run(command, input="what is sent\n", capture_output=True, text=True, check=False, timeout=60)
    assert said == (done.stdout.strip() or f"ends with {done.returncode}"), done.stderr


def test_the_limit_is_told_in_time() -> None:
    assert [signal_s(each) for each in (None, 3600.0, 60.0)] == [120, 120, 15]
    said = own_arguments(name="p", count=2, comment="outrider:p:me@here:t", folder="/f", time_s=90)
    assert {"--signal=B:USR1@22", "--time=0-00:01:30", "--nodes=2-2", "--no-kill", "--no-requeue"} <= set(said)
    assert not [
        each for each in own_arguments(name="p", count=1, comment="", folder="/f", time_s=None) if "time" in each
    ]
