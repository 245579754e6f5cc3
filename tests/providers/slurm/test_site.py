"""The shell commands that run on a login host, as its own shell runs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import anyio
import pytest

from outrider.providers.errors import BadRequest
from outrider.providers.shared.login_host import COMMAND_S, Ended
from outrider.providers.slurm import site


def test_a_job_is_cancelled_also_where_its_folder_is_gone(tmp_path: Path) -> None:
    """``:`` is a special command: dash ends where its redirection fails."""
    scancel = tmp_path / "scancel"
    scancel.write_text('#!/bin/sh\necho "$@" >>"$0.said"\n')
    scancel.chmod(0o755)
    command = ["sh", "-c", site._END, "end", str(tmp_path / "gone/end"), str(tmp_path / "end"), "--", "7"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(command, env={"PATH": path}, timeout=60, capture_output=True, text=True, check=True)
    assert (tmp_path / "end").exists()
    assert (tmp_path / "scancel.said").read_text() == "--quiet --state=PENDING 7\n--quiet --signal=TERM 7\n"
    assert done.stderr == ""


class Login:
    """A login host with a cache, and without Slurm."""

    where = "on login"

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        for name in ("sbatch", "scontrol"):
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
        self._environment = {"PATH": f"{folder}:{os.environ['PATH']}", "OUTRIDER_CACHE": str(self.cache)}

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", within_s: float = COMMAND_S) -> Ended:
        done = await anyio.run_process(list(argv), input=stdin, env=self._environment, check=False)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.anyio
@pytest.mark.parametrize("name", [".", "jobs"])
async def test_jobs_run_nothing_from_a_folder_that_others_may_write_in(tmp_path: Path, name: str) -> None:
    """They could put programs of their own in the place of those that the nodes run."""
    login = Login(tmp_path)
    around = await site.SlurmCommands(login).look_around()
    assert around.root == str(login.cache / "jobs")
    assert [path.stat().st_mode & 0o777 for path in (login.cache, login.cache / "jobs")] == [0o700, 0o700]
    for mode in (0o770, 0o702):
        (login.cache / name).chmod(mode)
        with pytest.raises(BadRequest, match=rf"somebody else may change.*mode {mode:o}.*on login") as caught:
            await site.SlurmCommands(login).look_around()
        assert "chmod go-w" in caught.value.advice
    (login.cache / name).chmod(0o755)
    await site.SlurmCommands(login).look_around()


@pytest.mark.anyio
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives links to others")
async def test_a_folder_that_a_link_of_somebody_elses_leads_to_is_not_trusted(tmp_path: Path) -> None:
    login = Login(tmp_path)
    (tmp_path / "real").mkdir(mode=0o700)
    login.cache.symlink_to("real")
    os.chown(login.cache, 65534, -1, follow_symlinks=False)
    with pytest.raises(BadRequest, match="uid 65534"):
        await site.SlurmCommands(login).look_around()
