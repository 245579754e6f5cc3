"""`outrider ssh` and `outrider exec` lead into containers of Podman."""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest

from outrider import Containers, Pool, compute, instance_info

from .podman import IMAGE, USR, Podman

pytestmark = pytest.mark.anyio


@compute
def number() -> int:
    return instance_info().node


async def outrider(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[bytes]:
    return await anyio.run_process([sys.executable, "-m", "outrider", *argv], input=stdin.encode(), check=False)


async def test_a_shell_and_commands_run_in_the_containers(containers: Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    provider = Containers(IMAGE, network=False, volumes=[USR])  # the command that is found
    async with Pool(provider=provider, nodes=2, name="inside", console="silent", run="inside") as pool:
        assert await pool.broadcast(number()) == [0, 1]
        command, names = (
            ("exec", "inside", "--", "cat", "/proc/1/cmdline"),
            [each.encode() for each in containers.names],
        )
        everywhere = await outrider(*command)
        with anyio.fail_after(120):  # the record, by which nodes are found, is written by a thread
            while any(name not in everywhere.stdout for name in names):  # they are in the words of the lease
                await anyio.sleep(0.1)
                everywhere = await outrider(*command)
        assert everywhere.returncode == 0, everywhere.stderr
        assert {line[: len("[node 0]")] for line in everywhere.stdout.decode().splitlines()} == {"[node 0]", "[node 1]"}
        one = await outrider("exec", containers.names[0], "--", "sh", "-c", "echo out; echo err >&2; exit 7")
        assert one.returncode == 7
        assert one.stdout.strip().endswith(b"] out")
        assert one.stderr.strip().endswith(b"] err")
        assert (await outrider("exec", "inside", "--node", "1", "--", "nowhere")).returncode == 127
        shell = await outrider("ssh", "inside", "--node", "1", stdin="cd / && ls -d etc && exit 5")
        assert (shell.returncode, shell.stdout) == (5, b"etc\n")
