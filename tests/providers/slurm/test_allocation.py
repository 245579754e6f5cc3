"""The pools of a program that runs in a job: where srun is missing, or does not end."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path

import anyio
import pytest

from outrider.providers.base import EntryPoints, LaunchRequest, MachineReachable
from outrider.providers.errors import BadRequest
from outrider.providers.slurm import allocation
from outrider.providers.slurm.allocation import Allocation
from outrider.providers.slurm.script import KEYS
from outrider.providers.slurm.step.programs import HERE

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=1)
MADE = Allocation(job="7", nodes=("c0",))
STUBBORN = "#!/bin/bash\ntrap '' TERM\ntouch $0.begun\nuntil [ -e $0.over ]; do sleep 0.05; done\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (made := tmp_path / "programs").mkdir()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(made))
    (made / "timeout").write_text("#!/bin/sh\nexit 127\n")  # squeue is not there either
    (made / "timeout").chmod(0o755)
    return made


def with_srun(programs: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PATH", f"{programs}:{os.defpath}")
    (programs / "srun").write_text(text)
    (programs / "srun").chmod(0o755)


async def test_a_path_without_srun_is_an_error_that_says_so(programs: Path, tmp_path: Path) -> None:
    assert not (programs / "srun").exists()
    async with MADE.open("p", EntryPoints()) as fleet:
        with pytest.raises(BadRequest, match="no srun on the PATH of this program, which runs in job 7"):
            await fleet.launch(REQUEST, 1)
    assert list((tmp_path / "cache/jobs").iterdir()) == []


async def test_an_srun_that_outlives_sigterm_is_killed(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_srun(programs, monkeypatch, STUBBORN)
    monkeypatch.setattr(allocation, "END_S", 0.1)
    monkeypatch.setattr(allocation, "KILL_S", 0.1)
    srun = programs / "srun"

    async def give_up() -> None:
        await anyio.sleep(60)
        Path(f"{srun}.over").touch()
        raise AssertionError("it was not killed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(give_up)
        async with MADE.open("p", EntryPoints()) as fleet:
            await fleet.launch(REQUEST, 1)
            while not Path(f"{srun}.begun").exists():
                await anyio.sleep(0.01)
        tasks.cancel_scope.cancel()


OBEDIENT = "#!/bin/bash\nfolder=${@: -3:1}\nuntil [ -e $folder/end.c0 -o -e $folder/end ]; do sleep 0.05; done\n"


async def test_a_cancelled_end_goes_on_and_leaves_the_node_free(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_srun(programs, monkeypatch, OBEDIENT)
    async with MADE.open("p", EntryPoints()) as fleet:
        [first] = await fleet.launch(REQUEST, 1)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await fleet.terminate([first.id])
        with anyio.fail_after(60):
            await fleet.terminate([first.id])  # which has begun
        [second] = await fleet.launch(REQUEST, 1)
        assert not (fleet._folder / "end.c0").exists()
        assert fleet._steps[second.id].srun.poll() is None


async def test_a_folder_that_could_not_be_filled_is_made_anew(
    programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_srun(programs, monkeypatch, OBEDIENT)
    written = Path.write_text
    full = [True]

    def write(path: Path, text: str) -> int:
        if path.name == KEYS and full:
            raise OSError(errno.ENOSPC, full.pop() and "No space left on device")
        return written(path, text)

    monkeypatch.setattr(Path, "write_text", write)
    async with MADE.open("p", EntryPoints()) as fleet:
        with pytest.raises(BadRequest, match="cannot be written: No space left on device"):
            await fleet.launch(REQUEST, 1)
        assert list((tmp_path / "cache/jobs").iterdir()) == []
        await fleet.launch(REQUEST, 1)
        assert (fleet._folder / KEYS).read_text() == "ssh-ed25519 CLIENT\n"
    assert list((tmp_path / "cache/jobs").iterdir()) == []


@pytest.mark.parametrize("name", [".", "jobs"])
async def test_nothing_is_run_from_a_folder_that_others_may_write_in(
    programs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    with_srun(programs, monkeypatch, OBEDIENT)
    cache = tmp_path / "cache"
    (cache / "jobs").mkdir(parents=True)
    for folder in (cache, cache / "jobs"):
        folder.chmod(0o755)
    (cache / name).chmod(0o775)
    async with MADE.open("p", EntryPoints()) as fleet:
        with pytest.raises(BadRequest, match=r"others may write in it \(mode 775\)") as caught:
            await fleet.launch(REQUEST, 1)
        assert "chmod go-w" in caught.value.advice
        assert list((cache / "jobs").iterdir()) == []
        (cache / name).chmod(0o755)
        await fleet.launch(REQUEST, 1)


async def test_this_computer_runs_no_relay_from_the_disk_that_nodes_write_on(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_srun(programs, monkeypatch, OBEDIENT)
    async with MADE.open("p", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 1)
        (fleet._folder / "nodes").mkdir()
        (fleet._folder / "nodes/c0").write_text(json.dumps({"host_key": "ssh-ed25519 KEY", "user": "me"}))
        with anyio.fail_after(60):
            event = await anext(aiter(fleet.events()))
            while not isinstance(event, MachineReachable):  # that squeue is missing is told as well
                event = await anext(aiter(fleet.events()))
    assert event.machine.address is not None
    command = event.machine.address.command
    assert command[:4] == (sys.executable, "-I", "-S", str(HERE / "relay.py"))
    assert f"{fleet._folder}/relay.py" in command[4:]
