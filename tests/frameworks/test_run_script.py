"""`outrider run` of scripts for `torchrun`, unchanged: the same loss, the code of the first failure, lost nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from netlab import Lab, missing

RANKS = 4
REPOSITORY = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("torchrun_script.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
RUN = [sys.executable, "-c", "from outrider.engine.cli.main import main; main()", "run", "--nodes"]
OUTRIDER = [*RUN, str(RANKS)]
ENDLESS = """
import os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, restarts = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print(f"rank {rank}, pid {os.getpid()}, restarts {restarts}", flush=True)
total = torch.ones(1)
for step in range(10 if restarts else 1_000_000):
    dist.all_reduce(total)
    if sys.argv[1:] == ["exit"] and rank == 1 and step == 10:
        sys.exit(3)
"""


def losses(printed: str) -> dict[str, float]:
    """Return the loss of each rank. Two ranks may print on one line, as the end of a line is a write of its own."""
    return {rank: float(loss) for rank, loss in re.findall(r"rank (\d) loss (\d+\.\d{9})", printed)}


def test_a_script_of_fifteen_lines_gives_torchruns_loss() -> None:
    assert len(SCRIPT.read_text().splitlines()) == 15
    # torch may abort at the exit of a script that leaves its group open (its issue 190489), with all losses printed
    ranks = "2"  # of each program: each of them takes 3 s of a core
    expected = losses(subprocess.run([*TORCHRUN, ranks, SCRIPT], stdout=-1, check=False, text=True).stdout)
    assert set(expected) == {"0", "1"}
    found = losses(subprocess.run([*RUN, ranks, SCRIPT], stdout=-1, check=True, text=True).stdout)
    assert found == {rank: pytest.approx(loss, abs=1e-6) for rank, loss in expected.items()}


def test_the_rank_that_exits_gives_its_code_and_not_those_that_lost_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    ended = subprocess.run([*OUTRIDER, "train.py", "exit"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr
    assert "train.py failed on rank 1 of 4: it ended with exit code 3; 3 ranks followed within" in ended.stderr


def test_a_node_that_is_killed_in_the_middle_gives_another_generation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(ENDLESS)
    killed, seen = False, ""
    with subprocess.Popen([*OUTRIDER, "train.py"], cwd=tmp_path, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            seen += line
            found = re.search(r"rank 2, pid (\d+), restarts 0", line)
            if found is not None and not killed:  # its fork server leads the process group that is the machine
                fork_server = int(Path(f"/proc/{found[1]}/stat").read_text().rpartition(")")[2].split()[1])
                os.killpg(os.getpgid(fork_server), signal.SIGKILL)
                killed = True
        told = process.stderr.read()
    assert (killed, process.returncode, seen.count("restarts 1")) == (True, 0, RANKS), told


def test_other_computers_get_the_scripts_folder(tmp_path: Path) -> None:
    """Hosts of the lab, with a network and a home each, reached by SSH."""
    if lacks := missing():
        pytest.skip(f"no lab on this machine: {'; '.join(lacks)}")
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "data" / "x.txt").write_text("its data")
    (project / "helper.py").write_text("word = 'helped'\n")
    (project / "train.py").write_text(
        "import os, helper\nfrom pathlib import Path\n"
        "print(os.environ['RANK'], helper.word, Path('data/x.txt').read_text(), flush=True)\n"
        "Path('out').write_text('')\n"
    )
    with Lab(visible=(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))) as lab:
        known = tmp_path / "known_hosts"
        hosts = ",".join(f"{host.address}:{host.port}" for host in lab.create_many(2))
        known.write_text(lab.known_hosts)
        access = {"user": "root", "key": str(lab.key), "known_hosts": str(known)}
        options = [f"--set=provider.{name}={value}" for name, value in access.items()]
        words = ["--hosts", hosts, *options, f"--image=python={sys.executable}"]
        ended = subprocess.run(
            [*OUTRIDER[:-2], *words, "train.py"], cwd=project, capture_output=True, text=True, check=False
        )
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        f"[rank {rank} · train.py] {rank} helped its data" for rank in range(2)
    ]
    assert not (project / "out").exists()
