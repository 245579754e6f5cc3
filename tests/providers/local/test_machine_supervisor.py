"""Whatever part of a local pool is killed: the machines it took are reported gone, and nothing of them is left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import anyio
import pytest

from outrider import Pool
from outrider.engine.client.opening import ENTRY_POINTS
from outrider.providers.base import EntryPoints, MachineGone, MachineId
from outrider.providers.errors import NoCapacity, ProviderError
from outrider.providers.local import client, process_state
from outrider.providers.local.client import SupervisorClient
from outrider.providers.local.provider import Local

pytestmark = pytest.mark.anyio

ORPHANING = """
import os, signal, time

def serve(control):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            with open({said!r}, "a") as said:
                said.write(f"{{os.getpid()}}\\n")
            time.sleep(600)
        os._exit(0)
    control.recv(1)
    os._exit(0)

def execute(listener, forks, **rest):
    signal.pause()

def broken(listener, forks, **rest):
    raise OSError("no executor today")
"""


async def gone(fleet, count=1):
    """The next ``count`` machines that the provider says are gone: their causes by id."""
    causes = {}
    with anyio.fail_after(60):
        async for event in fleet.events():
            assert isinstance(event, MachineGone)
            causes[event.id] = event.cause
            if len(causes) == count:
                break
    return causes


@pytest.fixture
def orphans(tmp_path, monkeypatch):
    """The orphans that this module's executors have made so far: one each, which its fork server says the pid of."""
    said = tmp_path / "orphans"
    said.touch()
    (tmp_path / "orphaning.py").write_text(ORPHANING.format(said=str(said)))
    monkeypatch.syspath_prepend(tmp_path)
    return lambda: {int(line) for line in said.read_text().splitlines(keepends=True) if line.endswith("\n")}


async def test_a_killed_group_is_gone_and_nothing_is_left(request_, table, opened, tmp_path):
    async with opened() as fleet:
        machines = await fleet.launch(request_, 2)
        processes = table.of(machines[0])
        os.killpg(int(machines[0].facts["group"]), signal.SIGKILL)
        causes = await gone(fleet)
        assert causes.keys() == {machines[0].id}
        assert "killed by signal 9 (SIGKILL)" in causes[machines[0].id]
        assert not table.alive(processes)
        assert not (tmp_path / "local" / machines[0].id).exists()
        assert table.of(machines[1])  # its neighbour goes on


@pytest.mark.parametrize("part", ["executor", "fork server", "SSH server"])
async def test_a_machine_that_loses_one_part_is_gone_and_says_which(part, request_, table, tmp_path):
    async with Local(state=tmp_path, as_remote=True).open("p", ENTRY_POINTS) as fleet:
        (machine,) = await fleet.launch(request_, 1)
        executor, group = int(machine.facts["pid"]), int(machine.facts["group"])
        processes = table.of(machine)
        assert {executor, group} <= processes
        parts = [p for p in table.below().values() if p.group == group]
        (supervisor,) = [p.parent for p in parts if p.pid == group]  # its forks are in its group at first
        (ssh_server,) = {p.pid for p in parts if p.parent == supervisor} - {executor, group}
        victim = {"executor": executor, "fork server": group, "SSH server": ssh_server}[part]
        os.kill(victim, signal.SIGKILL)
        assert (await gone(fleet))[machine.id] == f"its {part} was killed by signal 9 (SIGKILL)"
        assert not table.alive(processes)


@pytest.mark.parametrize("end", ["kill", "terminate", "leave"])
async def test_orphans_in_sessions_of_their_own_end_with_their_machine(end, orphans, request_, table, opened):
    async with opened(EntryPoints("orphaning:serve", "orphaning:execute")) as fleet:
        (machine,) = await fleet.launch(request_, 1)
        await table.until(orphans)
        (pid,) = orphans()
        assert os.getsid(pid) == pid
        if end == "kill":
            os.killpg(int(machine.facts["group"]), signal.SIGKILL)
            await gone(fleet)
            assert not table.alive({pid})
        elif end == "terminate":
            await fleet.terminate([machine.id])
            assert not table.alive({pid})
    assert not table.alive({pid})


async def test_a_machine_that_is_terminated_while_it_starts_is_gone_at_once(orphans, request_, table, opened):
    """Whatever of it is forked is a process of its group before anything else happens."""
    async with opened(EntryPoints("orphaning:serve", "orphaning:execute")) as fleet:
        for _ in range(20):
            (machine,) = await fleet.launch(request_, 1)
            with anyio.fail_after(60):
                await fleet.terminate([machine.id])
            assert not table.of(machine)


async def test_an_executor_that_does_not_start_is_a_machine_gone_and_the_log_says_why(
    orphans, request_, table, opened, tmp_path
):
    async with opened(EntryPoints("orphaning:serve", "orphaning:broken")) as fleet:
        (machine,) = await fleet.launch(request_, 1)
        assert (await gone(fleet))[machine.id] == "its executor exited with status 1"
        assert "no executor today" in (tmp_path / "local" / "p" / "supervisor.log").read_text()


async def test_an_executor_that_cannot_be_imported_fails_the_launch_with_its_words(request_, table, opened):
    async with opened(EntryPoints("outrider.engine.node.forkserver:serve", "no.such:execute")) as fleet:
        with pytest.raises(ProviderError, match="No module named 'no'"):
            await fleet.launch(request_, 1)


@pytest.mark.parametrize("part", ["supervisor", "watchdog", "both"])
async def test_the_supervisors_death_takes_every_machine_and_the_next_launch_starts_another(
    part, orphans, request_, table, opened
):
    """What a task has started in a session of its own ends as well, whichever of the two is killed."""
    async with opened(EntryPoints("orphaning:serve", "orphaning:execute")) as fleet:
        machines = await fleet.launch(request_, 2)
        await table.until(lambda: len(orphans()) == 2)
        before = orphans()
        (supervisor,), (watchdog,) = table.supervisors(), table.watchdogs()
        processes = set(table.below(watchdog))
        assert before <= processes
        for pid in {"supervisor": [supervisor], "watchdog": [watchdog], "both": [watchdog, supervisor]}[part]:
            os.kill(pid, signal.SIGKILL)
        causes = await gone(fleet, 2)
        said = "the process that keeps the local nodes was killed by signal 9 (SIGKILL)"
        assert causes == {machine.id: said for machine in machines}
        if part != "both":
            await table.until(lambda: not table.alive(processes))  # its socket closes a moment before it ends
        await fleet.terminate([machines[0].id])
        (another,) = await fleet.launch(request_, 1)
        assert table.of(another)
        for pid in table.alive(before) if part == "both" else ():  # whom nobody has adopted that knows of them
            os.kill(pid, signal.SIGKILL)
    await table.until(lambda: not table.alive(before))


@pytest.mark.parametrize("stopped", ["template", "supervisor"])
async def test_the_watchdogs_death_leaves_nothing_where_another_process_stands_still(  # noqa: PLR0917
    stopped, orphans, request_, table, opened, heavy
):
    """Found by random faults: the kernel sends SIGHUP to a group that is orphaned while one of its processes stands
    still, which killed the supervisor before it had ended what tasks had left behind.
    """
    programs = EntryPoints("orphaning:serve", "orphaning:execute", ENTRY_POINTS.template, ("heavy_here",))
    async with opened(programs) as fleet:
        await fleet.launch(request_, 2)
        await table.until(lambda: len(orphans()) == 2)
        (supervisor,), (watchdog,) = table.supervisors(), table.watchdogs()
        left = set(table.below(watchdog))
        still = supervisor if stopped == "supervisor" else importers(heavy)[0]
        os.kill(still, signal.SIGSTOP)
        await table.until(lambda: Path(f"/proc/{still}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        os.kill(watchdog, signal.SIGKILL)
        await gone(fleet, 2)
        await table.until(lambda: not table.alive(left))


@pytest.mark.parametrize("wakes", [True, False])
async def test_a_supervisor_that_is_stopped_just_after_its_watchdogs_death_is_ended(  # noqa: PLR0917
    wakes, request_, table, opened, heavy, patient, monkeypatch
):
    """Found by random faults: nobody wakes it, and it holds the socket by whose end the client hears of its death."""
    monkeypatch.setattr(client, "KILL_DEADLINE_S", 60.0 if wakes else 0.3)
    (heavy / "wait").touch()  # it imports for so long, and does not see the death
    async with opened(replace(ENTRY_POINTS, shared=(*ENTRY_POINTS.shared, "heavy_here"))) as fleet:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(refused, fleet, request_)
            await table.until(lambda: importers(heavy))
            (supervisor,), (watchdog,) = table.supervisors(), table.watchdogs()
            os.kill(watchdog, signal.SIGKILL)
            await table.until(lambda: not table.alive({watchdog}))
            stands_still(supervisor, patient)
            if wakes:
                (heavy / "wait").unlink()
        await table.until(lambda: not table.alive({supervisor}))  # its socket closes a moment before it ends
    (heavy / "wait").unlink(missing_ok=True)


async def refused(fleet, request_):
    with anyio.fail_after(60), pytest.raises(ProviderError, match="the process that keeps the local nodes stood still"):
        await fleet.launch(request_, 1)


@pytest.mark.parametrize("worked", [True, False])
async def test_a_supervisor_that_is_killed_as_it_starts_may_be_followed_by_another_if_one_has_worked(
    worked, request_, opened, monkeypatch
):
    """Found by random faults: the second one was killed before it had done anything, and the pool gave up for good."""
    async with opened(ENTRY_POINTS) as fleet:
        if worked:
            (machine,) = await fleet.launch(request_, 1)
            os.kill(fleet._supervisor._supervisor, signal.SIGKILL)
            await gone(fleet)
        with monkeypatch.context() as patched:
            patched.setattr(SupervisorClient, "request", killed_first)
            with pytest.raises(ProviderError, match="SIGKILL") as raised:
                await fleet.launch(request_, 1)
        assert (raised.value.retry_after_s is not None) is worked
        (another,) = await fleet.launch(request_, 1)
        assert another.id != (machine.id if worked else None)


async def killed_first(supervisor, order):
    os.kill(supervisor._pid, signal.SIGKILL)
    await supervisor._done.wait()
    raise supervisor.gone()


@pytest.fixture
def patient(monkeypatch):
    """No process counts as standing still because a busy computer gives it no turn, until `stands_still`."""
    monkeypatch.setattr(process_state, "STILL_S", 600.0)
    monkeypatch.setattr(process_state, "LOOK_S", 0.05)
    return monkeypatch


def stands_still(pid, patient):
    """Stop a process, which is noticed soon."""
    os.kill(pid, signal.SIGSTOP)
    patient.setattr(process_state, "STILL_S", 0.3)


async def test_a_supervisor_that_stands_still_is_killed_and_the_launch_after_it_goes_on(
    request_, table, opened, patient
):
    patient.setattr(client, "KILL_DEADLINE_S", 60.0)
    async with opened() as fleet:
        machines = await fleet.launch(request_, 2)
        (supervisor,) = table.supervisors()
        below = set(table.below(supervisor))
        stands_still(supervisor, patient)
        said = "the process that keeps the local nodes stood still for 0.3 s and was killed"
        with pytest.raises(ProviderError, match=said) as caught:
            await fleet.launch(request_, 1)
        assert caught.value.retry_after_s == 1.0
        assert await gone(fleet, 2) == {machine.id: said for machine in machines}
        assert not table.alive({supervisor, *below})
        patient.setattr(process_state, "STILL_S", 600.0)
        assert len(await fleet.launch(request_, 2)) == 2


async def test_the_end_of_a_machine_is_not_waited_for_without_a_limit(request_, table, opened, patient):
    patient.setattr(client, "KILL_DEADLINE_S", 0.3)
    async with opened() as fleet:
        (machine,) = await fleet.launch(request_, 1)
        (supervisor,), (watchdog,) = table.supervisors(), table.watchdogs()
        for pid in (supervisor, watchdog):
            stands_still(pid, patient)
        await fleet.terminate([machine.id])
        await table.until(lambda: not table.alive({supervisor, watchdog}))


CLIENT = """
import anyio, os, sys
from outrider.engine.client.opening import ENTRY_POINTS
from outrider.providers.base import LaunchRequest
from outrider.providers.local.provider import Local

async def main():
    async with Local(state=sys.argv[1]).open("killed", ENTRY_POINTS) as fleet:
        await fleet.launch(LaunchRequest("", 1), 1)
        print(flush=True)
        await anyio.sleep(600)

anyio.run(main)
"""


async def test_the_directory_of_a_killed_client_and_supervisor_is_swept_at_the_next_start(table, opened, tmp_path):
    with subprocess.Popen([sys.executable, "-c", CLIENT, tmp_path], stdout=subprocess.PIPE) as client:
        assert client.stdout.readline() == b"\n"
        below = table.below(client.pid)
        (watchdog,) = [p.pid for p in below.values() if p.parent == client.pid]
        (supervisor,) = [p.pid for p in below.values() if p.parent == watchdog]
        for pid in (client.pid, watchdog, supervisor):  # stopped first, or the supervisor would tidy up
            os.kill(pid, signal.SIGSTOP)
        for pid in (client.pid, watchdog, supervisor):
            os.kill(pid, signal.SIGKILL)
    await table.until(lambda: not table.alive(set(below)))
    left = tmp_path / "local" / "killed"
    assert left.is_dir()
    async with opened():
        await table.until(lambda: not left.exists())


async def test_terminate_is_idempotent_and_leaves_the_others(request_, table, opened):
    async with opened() as fleet:
        first, second = await fleet.launch(request_, 2)
        processes = table.of(first)
        for _ in range(2):
            await fleet.terminate([first.id, MachineId("p/n99"), MachineId("elsewhere")])
            assert not table.alive(processes)
        assert table.groups() == {int(second.facts["group"])}


async def test_a_state_path_of_any_length_works(tmp_path, table):
    long = tmp_path / ("x" * 120)
    for as_remote in (False, True):
        async with Pool(provider=Local(state=long, as_remote=as_remote), nodes=1, console="silent") as pool:
            (node,) = pool.snapshot().nodes
            assert len(node.facts["directory"]) > 107
        assert list(long.rglob("n0")) == []


async def test_an_ssh_server_starts_no_compiler(monkeypatch, tmp_path, table):
    """asyncssh looks for a library by means of gcc, whose temporary files would stay if it was killed in between."""
    import_module("asyncssh")  # this program has searched before

    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in ("gcc", "cc", "ld", "objdump"):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {name} >> {tmp_path}/started\n")
        (tmp_path / "bin" / name).chmod(0o755)
    async with Pool(provider=Local(state=tmp_path / "state", as_remote=True), nodes=1, console="silent"):
        pass
    assert not (tmp_path / "started").exists()


async def test_nothing_listens_on_tcp_and_nobody_else_may_look(request_, table, opened, tmp_path):
    async with opened() as fleet:
        machines = await fleet.launch(request_, 2)
        sockets = {each for pid in table.below() for each in sockets_of(pid)}
        assert not sockets & listening()
        directory = tmp_path / "local" / "p"
        for machine in machines:
            home = directory.parent / machine.id
            assert [mode(path) for path in (directory, home, home / "work")] == [0o700] * 3
            assert mode(Path(machine.address.path)) == 0o600
        assert mode(directory / "supervisor.log") == 0o600


async def test_processes_of_a_machine_keep_the_default_policy(request_, table, opened):
    async with opened() as fleet:
        machines = await fleet.launch(request_, 2)
        policies = set()
        for pid in {pid for machine in machines for pid in table.of(machine)}:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                policies.add(os.sched_getscheduler(pid))
        assert policies == {os.SCHED_OTHER}


async def test_a_machine_that_cannot_be_made_leaves_the_others_alone(request_, table, opened, tmp_path):
    async with opened() as fleet:
        (first,) = await fleet.launch(request_, 1)
        number = int(first.id.rpartition("/n")[2])
        (tmp_path / "local" / "p" / f"n{number + 1}").touch()  # where the next one's directory would be
        with pytest.raises(NoCapacity, match=r"could not be started \(.*File exists"):
            await fleet.launch(request_, 1)
        (third,) = await fleet.launch(request_, 1)
        assert table.of(first)
        assert table.of(third)


FORKS_NOW_AND_THEN = """
from importlib import import_module
from pathlib import Path

from outrider.engine.node.server import serve
from outrider.providers.local import client, process_state, processes
from outrider.providers.local.client import SupervisorClient

really = processes.fork

def fork(*given):
    if Path({full!r}).exists():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return really(*given)

processes.fork = fork
"""


async def test_a_process_that_cannot_be_forked_is_its_machines_misfortune_alone(
    request_, table, opened, tmp_path, monkeypatch
):
    full = tmp_path / "too-many-processes"
    (tmp_path / "now_and_then.py").write_text(FORKS_NOW_AND_THEN.format(full=str(full)))
    monkeypatch.syspath_prepend(tmp_path)
    async with opened(EntryPoints("outrider.engine.node.forkserver:serve", "now_and_then:serve")) as fleet:
        (first,) = await fleet.launch(request_, 1)
        full.touch()
        with pytest.raises(NoCapacity, match=r"could not be started \(.*Resource temporarily unavailable"):
            await fleet.launch(request_, 1)
        full.unlink()
        (third,) = await fleet.launch(request_, 1)
        assert table.groups() == {int(each.facts["group"]) for each in (first, third)}


async def test_opening_and_closing_leaks_no_descriptor(request_, table, opened):
    async def cycle():
        async with opened() as fleet:
            await fleet.launch(request_, 1)

    await cycle()
    before = descriptors()
    for _ in range(20):
        await cycle()
    await table.until(lambda: descriptors() <= before)  # a thread may still look for what dead pools have left


def descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def sockets_of(pid):
    with suppress(OSError):  # the process has ended meanwhile
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                yield str(link.readlink())


def listening():
    """The TCP sockets of this network namespace in state LISTEN (0A)."""
    rows = [row.split() for name in ("tcp", "tcp6") for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return {f"socket:[{row[9]}]" for row in rows if row[3] == "0A"}


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- the template -----------------------------------------------------------------------------------------------------

HEAVY = """
import os, time
from importlib import import_module
from pathlib import Path
folder = Path({folder!r})
with (folder / "imported").open("a") as file:
    file.write(f"{{os.getpid()}}\\n")
while (folder / "wait").exists():
    time.sleep(0.001)
"""


@pytest.fixture
def heavy(tmp_path, monkeypatch):
    """The folder in which a module that takes long to import says who does."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "heavy_here.py").write_text(HEAVY.format(folder=str(folder)))
    monkeypatch.syspath_prepend(folder)
    return folder


def importers(folder):
    path = folder / "imported"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


WAITS_FOR_THE_LAUNCH = """
import time
from pathlib import Path
from outrider.engine.node.server import serve
while not Path({sent!r}).exists():
    time.sleep(0.001)
"""


@pytest.fixture
def executor(heavy, monkeypatch):
    """An executor whose import ends when a launch was sent: a supervisor that has none yet imports all else before."""
    (heavy / "begins_late.py").write_text(WAITS_FOR_THE_LAUNCH.format(sent=str(heavy / "sent")))
    send = SupervisorClient._send

    async def sent(supervisor):
        await send(supervisor)
        (heavy / "sent").touch()

    monkeypatch.setattr(SupervisorClient, "_send", sent)
    return "begins_late:serve"


@pytest.mark.parametrize("killed", ["nobody", "supervisor", "watchdog"])
async def test_executors_start_while_the_code_of_fork_servers_is_imported(  # noqa: PLR0917
    killed, request_, table, opened, heavy, executor
):
    """And end with their supervisor in that moment, too."""
    launched = []
    (heavy / "wait").touch()
    programs = replace(ENTRY_POINTS, executor=executor, shared=(*ENTRY_POINTS.shared, "heavy_here"))
    async with opened(programs) as fleet:

        async def launch():
            try:
                launched.extend(await fleet.launch(request_, 2))
            except ProviderError:
                assert killed != "nobody"

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launch)
            await table.until(lambda: importers(heavy))
            executors = table.groups()
            assert (len(executors), launched) == (2, [])
            (supervisor,), (watchdog,) = table.supervisors(), table.watchdogs()
            if killed != "nobody":
                os.kill(supervisor if killed == "supervisor" else watchdog, signal.SIGKILL)
            (heavy / "wait").unlink()
        if killed == "nobody":
            assert {int(machine.facts["pid"]) for machine in launched} == executors
            assert table.groups() == {int(machine.facts["group"]) for machine in launched}
        else:
            await table.until(lambda: not table.alive({supervisor, watchdog, *executors}))


async def test_machines_come_from_one_process_that_has_imported_what_takes_long(heavy, request_, table, opened):
    async with opened(replace(ENTRY_POINTS, preload=("heavy_here",))) as fleet:
        machines = await fleet.launch(request_, 2)
        (template,) = importers(heavy)
        (supervisor,) = table.supervisors()
        groups = {int(machine.facts["group"]) for machine in machines}
        for group in groups:  # what the template forked to fork it may live for a moment yet
            await table.until(lambda group=group: table.below(supervisor)[group].parent == supervisor)
        assert {process.group for process in table.below(supervisor).values()} >= groups
        os.killpg(int(machines[0].facts["group"]), signal.SIGKILL)
        assert (await gone(fleet)).keys() == {machines[0].id}
        await fleet.launch(request_, 1)
        assert importers(heavy) == [template]
    assert not table.alive({template})


async def test_without_the_template_machines_come_from_the_supervisor(heavy, request_, table, opened):
    async with opened(replace(ENTRY_POINTS, preload=("heavy_here",))) as fleet:
        (first,) = await fleet.launch(request_, 1)
        os.kill(importers(heavy)[0], signal.SIGKILL)
        (second,) = await fleet.launch(request_, 1)
        assert table.of(first)
        assert table.of(second)


async def test_a_module_that_cannot_be_imported_keeps_no_machine_away(request_, table, opened):
    async with opened(replace(ENTRY_POINTS, preload=("no_such_module_here",))) as fleet:
        (machine,) = await fleet.launch(request_, 1)
        assert table.of(machine)


async def test_a_pool_can_end_while_its_template_imports(heavy, request_, table, opened):
    (heavy / "wait").touch()
    async with opened(replace(ENTRY_POINTS, preload=("heavy_here",))) as fleet:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.launch, request_, 1)
            await table.until(lambda: importers(heavy))
            tasks.cancel_scope.cancel()
        (template,) = importers(heavy)
        assert not fleet_machines(table)
    assert not table.alive({template})


def fleet_machines(table):
    """Process groups below the supervisors, other than the supervisors' own."""
    leaders = table.supervisors()
    return {p.group for leader in leaders for p in table.below(leader).values()} - {*leaders}
