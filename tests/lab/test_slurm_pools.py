"""Pools on a real Slurm: reached from outside through its login host, and what becomes of their jobs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from netlab import PLAIN_USER, Host

from outrider import Slurm
from outrider.providers import contract
from outrider.providers.base import LaunchRequest, Machine

if TYPE_CHECKING:
    from cluster import Cluster

pytestmark = pytest.mark.anyio
EXAMPLES = Path(__file__).parents[2] / "examples"
SETTLED, SETTLED_S = 10, 2.0  # so many times in a row in so long
REQUEST = LaunchRequest(client_key="ssh-ed25519 CLIENT", nodes=2, lease_s=60.0)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))


@pytest.fixture
def slurm(lab: Any, tmp_path: Path) -> Callable[..., Slurm]:
    """``slurm(cluster, **options)``: a provider of this cluster, from outside."""

    def provider(made: Cluster, **options: Any) -> Slurm:
        file = tmp_path / "known_hosts"
        file.write_text(made.login.known_hosts)
        usual = {"key": lab.key, "known_hosts": file, "config": False, "partition": "main"}
        return Slurm(f"{PLAIN_USER}@{made.login.address}", **{**usual, **options})

    return provider


def steps(made: Cluster, *, off: Collection[str] = ()) -> dict[str, list[int]]:
    """The step servers that run, by node. ``off``: nodes without power."""
    return {node.name: found for node in made.nodes if node.name not in off and (found := step_servers(node))}


def step_servers(node: Host) -> list[int]:
    return [
        pid
        for pid, line in node.processes().items()
        if any(word.endswith("step_server.py") for word in line) and "srun" not in line[0]
    ]


def jobs(made: Cluster) -> list[str]:
    """The jobs that squeue shows: those that wait, run or end."""
    return made.run("squeue", "--noheader", "--format=%A %T").stdout.splitlines()


@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: contract.Check, cluster, slurm) -> None:
    made, off = cluster(nodes=2, node_timeout_s=2), set[str]()

    async def alive() -> int:
        """How many step servers there are, when those of jobs that have just begun are there."""
        seen: list[int] = []
        while len(seen) < SETTLED or len(set(seen[-SETTLED:])) > 1:
            seen.append(len(steps(made, off=off)))
            await anyio.sleep(SETTLED_S / SETTLED)
        return seen[-1]

    async def kill(machine: Machine) -> None:
        while len(running := steps(made)) < 2:
            await anyio.sleep(0.1)
        off.add(node := min(running))  # its machines get their nodes in this order
        made.node(node).power_off()

    await check(contract.Subject(provider=slurm(made), alive=alive, kill=kill, request=REQUEST, within_s=60.0))
    assert jobs(made) == []


# --- programs ---------------------------------------------------------------------------------------------------------


async def test_the_digits_example_trains_with_only_its_provider_changed(cluster, slurm, tmp_path):
    """From outside. The image is named because no host of the lab reaches a package index."""
    pytest.importorskip("torch")
    made = cluster(nodes=4)
    provider = slurm(made)
    here = f"provider={provider_text(provider)}, image=Image(python={sys.executable!r})"
    text = (EXAMPLES / "02_digits_ddp.py").read_text().replace("provider=Local()", here)
    program = tmp_path / "02_digits_ddp.py"
    program.write_text(text.replace("import Local, Pool", "import Image, Slurm, Pool"))
    ended = await anyio.run_process([sys.executable, str(program)], check=False, stderr=subprocess.STDOUT)
    said = ended.stdout.decode()
    assert ended.returncode == 0, said
    assert "four nodes:" in said
    assert jobs(made) == []
    assert left(made) == []


def provider_text(provider: Slurm) -> str:
    return (
        f"Slurm({provider.host!r}, partition={provider.partition!r}, key={provider.key!r}, "
        f"known_hosts={list(provider.known_hosts)!r}, config=False)"
    )


def left(made: Cluster) -> list[str]:
    """The processes and files of ours on the cluster, beside the cache."""
    running = [line for host in made.hosts for line in host.processes().values() if "outrider" in " ".join(line)]
    folders = made.run("sh", "-c", "ls -A ~/.cache/outrider/jobs", check=False).stdout.split()
    return [*map(" ".join, running), *folders]
