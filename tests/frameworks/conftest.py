"""Where the frameworks' tests run: on nodes of this computer, and on hosts of the lab, each with a network of its own.

A test says how many nodes it wants, and with which plugins; the functions that it runs are the same in both places.
Where there can be no lab (see tests/lab/README.md) those tests are skipped and say why.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from outrider import SSH, Image, Local, Plugin, Pool
from outrider.actors.events import TaskOutput
from outrider.engine.record.runs.writer import RunWriter

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
NIGHTLY = {
    "test_a_broadcasts_ranks_are_comm_world[here-2-2]",
    "test_a_broadcasts_ranks_are_comm_world[hosts-3-1]",
    "test_a_client_computes_on_all_nodes[hosts]",
    "test_a_function_chooses_its_backend[hosts]",
    "test_a_function_may_have_a_world_of_its_own[hosts]",
    "test_a_grid_search_on_four_nodes[hosts]",
    "test_a_lost_rank_starts_the_world_anew[here]",
    "test_a_lost_workers_tasks_run_elsewhere_and_its_replacement_works[here]",
    "test_a_rank_that_raises_is_not_waited_for[hosts]",
    "test_a_task_alone_is_a_cluster_of_one[hosts]",
    "test_a_task_alone_is_a_world_of_one_also_beside_others[hosts]",
    "test_a_task_that_is_ended_takes_its_mpirun_along_on_all_nodes[here]",
    "test_a_worker_that_raises_is_not_waited_for[hosts]",
    "test_accelerate_reads_an_fsdp_configuration_back[hosts]",
    "test_accelerator_trains_one_model_on_all_ranks[hosts]",
    "test_an_error_or_an_abort_of_one_rank_ends_the_others[here]",
    "test_arguments_may_be_arrays_and_a_task_alone_is_a_program_of_one[hosts]",
    "test_ddp_trains_one_model_as_one_process_would[here-2 nodes x 2 ranks]",
    "test_ddp_trains_one_model_as_one_process_would[here-4 nodes]",
    "test_ddp_trains_one_model_as_one_process_would[hosts-4 nodes]",
    "test_fit_on_the_jax_backend_trains_one_model[here]",
    "test_mpirun_starts_programs_on_the_nodes_over_the_pools_connections[here]",
    "test_ranks_are_one_program[here-2-1-3]",
    "test_ranks_are_one_program[hosts-1-2-None]",
    "test_ranks_are_one_program[hosts-2-1-None]",
    "test_ranks_that_train_together_stream_their_values[hosts]",
    "test_several_devices_of_a_process_are_used[hosts]",
    "test_tasks_find_the_cluster_and_compute_on_each_node[here]",
    "test_the_head_of_a_broadcast_may_use_mpirun_while_the_others_wait[here]",
    "test_the_hub_knows_the_token_and_no_file_does[hosts]",
    "test_the_same_from_async_code[hosts]",
    "test_trainer_trains_one_model_on_all_ranks[hosts]",
    "test_when_a_rank_is_lost_all_begin_anew[here-0]",
    "test_when_a_rank_is_lost_all_begin_anew[hosts-0]",
    "test_when_a_rank_is_lost_all_begin_anew[hosts-1]",
    "test_who_has_no_certificate_is_neither_let_in_nor_told_anything[here]",
    "test_who_is_through_first_waits_for_the_others[here]",
    "test_with_sklearn_n_jobs_is_enough[hosts]",
    "test_with_the_schedulers_node_a_new_cluster_begins[here]",
    "test_without_async_too[hosts]",
    "test_without_init_the_function_chooses_how_mpi_begins[hosts]",
    "test_workers_train_one_model[here-2 nodes, twice]",
    "test_workers_train_one_model[here-2 nodes]",
    "test_workers_train_one_model[here-2 ranks, twice]",
    "test_workers_train_one_model[hosts-2 nodes, twice]",
    "test_workers_train_one_model[hosts-2 ranks, twice]",
}
sys.path.insert(0, str(REPOSITORY / "tests" / "lab"))

from netlab import Host, Lab, missing  # noqa: E402 - found through the line above


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("frameworks")
            if item.name in NIGHTLY:
                item.add_marker("nightly")


class Here:
    """Nodes of this computer."""

    def pool(self, nodes: int, *plugins: Plugin, spare: int = 0) -> Pool:
        """``spare``: as many hosts more than nodes."""
        return Pool(provider=Local(), nodes=nodes, plugins=plugins, console="silent")

    def lose(self, pool: Pool, rank: int) -> None:
        """The machine of that rank dies."""
        facts = next(node.facts for node in pool.snapshot().nodes if node.rank == rank)
        os.killpg(int(facts["group"]), signal.SIGKILL)


class Hosts:
    """Hosts with this computer's files: its Python, with every framework, is theirs too. Reached by SSH."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._known = folder / "known_hosts"
        self._hosts: list[Host] = []

    def pool(self, nodes: int, *plugins: Plugin, spare: int = 0) -> Pool:
        self._hosts = self._lab.create_many(nodes + spare)
        self._known.write_text(self._lab.known_hosts)
        given = [f"{host.address}:{host.port}" for host in self._hosts]
        provider = SSH(given, user="root", key=self._lab.key, known_hosts=self._known)
        image = Image(python=sys.executable)
        return Pool(provider=provider, image=image, nodes=nodes, plugins=plugins, console="silent")

    def lose(self, pool: Pool, rank: int) -> None:
        """The host of that rank has no power any more; nobody says so."""
        address = next(node.address for node in pool.snapshot().nodes if node.rank == rank)
        next(host for host in self._hosts if host.address == address).power_off()


Place = Here | Hosts


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory of the tests' own; at the end nothing is left in it."""
    state = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_STATE", str(state))
        yield state
    left = state / "local"
    assert not left.exists() or list(left.iterdir()) == []


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """At its end a pool waits two seconds for the thread that writes its record, which is read here."""
    monkeypatch.setattr(RunWriter.close, "__defaults__", (60.0,))


@pytest.fixture(params=["here", "hosts"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "here":
        yield Here()
        return
    if lacks := missing():
        pytest.skip(f"no lab on this machine: {'; '.join(lacks)}")
    with Lab(visible=(REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))) as lab:
        yield Hosts(lab, tmp_path)


@pytest.fixture
async def printed() -> AsyncIterator[Callable[..., Awaitable[asyncio.Event]]]:
    """``seen = await printed(pool, text, times=n)``: an event that is set when tasks have printed it so often."""
    watching: list[asyncio.Task[None]] = []

    async def printed(pool: Pool, text: str, *, times: int) -> asyncio.Event:
        seen = asyncio.Event()

        async def watch() -> None:
            count = 0
            async for event in pool.events():
                if isinstance(event, TaskOutput):
                    count += event.text.count(text)
                    if count >= times:
                        seen.set()

        watching.append(asyncio.create_task(watch()))
        await asyncio.sleep(0)  # it listens from here on
        return seen

    yield printed
    for task in watching:
        task.cancel()
