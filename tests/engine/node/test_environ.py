"""The variables of each task: what a process and its children read, and what is left of those before."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from outrider.engine.node.environ import RANK_VARIABLES, RankVariables, Variable, drop_other_launchers

NAME = "OUTRIDER_TEST"


@pytest.fixture
def variable(monkeypatch):
    monkeypatch.setenv(NAME, "before")
    return Variable(NAME)


def seen():
    """By Python here, by C here, by a child."""
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    child = subprocess.run(
        [sys.executable, "-c", f"import os; print(os.environ[{NAME!r}])"], capture_output=True, check=True, text=True
    )
    return {os.environ[NAME], getenv(NAME.encode()).decode(), child.stdout.removesuffix("\n")}


@pytest.mark.parametrize("texts", [["a"], ["a", "b" * 9], ["long" * 300, "short"], ["é", "x" * 50_000, ""]])
def test_everybody_sees_the_last_value(variable, texts):
    for text in texts:
        variable.set(text)
        assert seen() == {text}


def test_what_a_task_did_to_it_is_undone_by_the_next(variable):
    variable.set("first")
    os.environ[NAME] = "its own"
    variable.set("second")
    assert seen() == {"second"}
    del os.environ[NAME]
    variable.set("third")
    assert seen() == {"third"}


def test_values_are_not_kept():
    script = f"""
import resource
from outrider.engine.node.environ import Variable
variable = Variable({NAME!r})
def peak(values):
    for number in range(values):
        variable.set(f"{{number:01000}}")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(-peak(100) + peak(20_000))
"""
    grown = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert int(grown.stdout) < 2_000  # KiB: of 20,000


def rank(number, **others):
    """What is known of a rank, of four on two nodes."""
    places = {"rank": number, "local_rank": number % 2, "node": number // 2}
    world = {"world_size": 4, "local_world_size": 2, "head_addr": "10.0.0.7", "head_port": 20001}
    return places | world | others


def variables():
    return {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}


@pytest.fixture
def ranks(monkeypatch):
    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    made = RankVariables()
    yield made
    made.clear()


OF_RANK_3 = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "NODE_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.7",
    "MASTER_PORT": "20001",
}


def test_a_rank_has_the_variables_of_torchrun_and_its_children_have_them(ranks):
    ranks.set(rank(3))
    assert variables() == OF_RANK_3
    code = f"import os; print(*map(os.environ.get, {RANK_VARIABLES}))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert child.stdout.split() == list(OF_RANK_3.values())


def test_the_next_rank_of_the_process_has_its_own(ranks):
    ranks.set(rank(3))
    ranks.set(rank(3, head_port=20002))
    assert variables() == OF_RANK_3 | {"MASTER_PORT": "20002"}
    ranks.set(rank(0, world_size=2, head_addr="::1"))
    assert variables() == {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
        "MASTER_ADDR": "::1",
        "MASTER_PORT": "20001",
    }


def test_what_a_rank_did_to_them_is_undone_for_the_next(ranks):
    ranks.set(rank(3))
    os.environ["RANK"] = "its own"
    del os.environ["WORLD_SIZE"]
    ranks.set(rank(3))
    assert variables() == OF_RANK_3


def test_other_tasks_have_what_was_there_before_the_first_rank(ranks):
    os.environ["MASTER_PORT"] = "of the image"
    for _ in range(2):
        ranks.set(rank(3))
        ranks.set(rank(1))
        ranks.clear()
        assert variables() == {"MASTER_PORT": "of the image"}
    del os.environ["MASTER_PORT"]


REMOVED = [
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID", "ROLE_RANK", "GROUP_WORLD_SIZE", "PET_NNODES", "RANK"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_NNODES"),
    *("SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEPID", "SLURM_TASKS_PER_NODE"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_ess_base_jobid"),
    *("PMI_RANK", "PMI_FD", "PMI2_FD", "PMIX_RANK", "PMIX_NAMESPACE", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"),
    *("MV2_COMM_WORLD_RANK", "PALS_RANKID", "JSM_NAMESPACE_RANK", "LSB_DJOB_RANKFILE", "FLUX_TASK_RANK"),
    *("HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "CROSS_RANK", "TF_CONFIG"),
]
KEPT = [
    *("SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE"),
    *("SLURM_ARRAY_TASK_ID", "LSB_JOBID", "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_orte_default_hostfile"),
    *("OMPI_ALLOW_RUN_AS_ROOT", "PMIX_MCA_gds", "HOROVOD_FUSION_THRESHOLD", "OMP_NUM_THREADS", "ROLE_ARN"),
    *("NCCL_SOCKET_IFNAME", "MASTER_KEY", "PETSC_DIR", "GROUP_NAME"),
]


def test_place_among_the_processes_of_another_launcher_is_removed(monkeypatch):
    for name in (*REMOVED, *KEPT):
        monkeypatch.setenv(name, "1")
    drop_other_launchers()
    assert [name for name in REMOVED if name in os.environ] == []
    assert [name for name in KEPT if name not in os.environ] == []
