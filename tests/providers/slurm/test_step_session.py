"""The script by which each command of a connection to a step gets the step's variables."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from outrider.providers.slurm.step import step_server

ODD = 'it\'s "one" $HOME `two`\nand \\three'


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_no_argument_has_the_variables(tmp_path: Path, shell: str) -> None:
    """Arguments of a command can be read by every user of the node. ``-x`` prints those of all that the shell runs."""
    if (executable := shutil.which(shell)) is None:
        pytest.skip(f"no {shell}")
    given = {"TOKEN": "s3cret", "ODD": ODD, "command": "x", "IFS": "x", "UID": "5", "PPID": "1", "POSIXLY_CORRECT": "1"}
    given |= {"BASH_FUNC_module%%": '() {  echo s3cret "$1" <(true)\n}', "a.b": "1", "OPTIND": "x", "Z": "\udc81"}
    text = step_server.session({os.fsencode(name): os.fsencode(value) for name, value in given.items()})
    script = tmp_path / "session"
    script.write_bytes(text.replace(b"exec /bin/sh", b"exec " + os.fsencode(executable)))

    def run(command: str) -> subprocess.CompletedProcess[bytes]:
        environment = {"PATH": os.environ["PATH"], "SSH_ORIGINAL_COMMAND": command}
        argv = ["sh", "-x", str(script)]
        return subprocess.run(argv, executable=executable, env=environment, capture_output=True, check=False)

    done = run("env -0; printf x")
    assert b"s3cret" not in done.stderr
    assert done.returncode == 0
    found = dict(each.split("=", 1) for each in os.fsdecode(done.stdout).split("\0")[:-1])
    assert {name: found[name] for name in ("TOKEN", "ODD", "command", "Z")} == {
        name: given[name] for name in ("TOKEN", "ODD", "command", "Z")
    }
    assert "UID" in found
    assert "SSH_ORIGINAL_COMMAND" not in found
    if shell == "bash":
        assert run("exec bash -c 'module y'").stdout.startswith(b"s3cret y /dev/fd/")
