"""The shell commands that run on a login host, as its own shell runs them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from outrider.providers.slurm import site


def test_a_job_is_cancelled_also_where_its_folder_is_gone(tmp_path: Path) -> None:
    """``:`` is a special command: dash ends where its redirection fails."""
    scancel = tmp_path / "scancel"
    scancel.write_text('#!/bin/sh\necho "$@" >>"$0.said"\n')
    scancel.chmod(0o755)
    command = ["sh", "-c", site._END, "end", str(tmp_path / "gone/end"), str(tmp_path / "end"), "--", "7"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(command, env={"PATH": path}, timeout=10, capture_output=True, text=True, check=True)
    assert (tmp_path / "end").exists()
    assert (tmp_path / "scancel.said").read_text() == "--quiet --state=PENDING 7\n--quiet --signal=TERM 7\n"
    assert done.stderr == ""
