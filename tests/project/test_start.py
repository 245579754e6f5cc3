"""What a program has imported when its local pool begins, and when that has given a result."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import pytest

PROGRAM = """
import asyncio, json, sys

import anyio

before = set(sys.modules)
from outrider import Local, Pool, compute

declared = set(sys.modules) - before
begun = set()

class Watched(Local):
    def open(self, pool, entry_points):
        begun.update(set(sys.modules) - before)
        return super().open(pool, entry_points)

@compute
def first():
    return 1

@compute
def of_worker():
    return sorted(sys.modules)

async def main():
    async with Pool(provider=Watched(), nodes=2, console="silent") as pool:
        assert await pool.run(first()) == 1
        worker = await pool.run(of_worker())
        last = set(sys.modules)
    ended = set(sys.modules) - before
    late = [*set(sys.modules) - last]
    print(json.dumps({"declared": [*declared], "begun": [*begun], "ended": [*ended], "late": late, "worker": worker}))

asyncio.run(main())
"""
# Rooms are packages, or modules of one; `-` takes one out again. Whoever adds a room here adds its time to each start.
DECLARING = (
    "actors.amounts",
    "collector",
    "engine.api",
    "-engine.api.accelerators",
    "-engine.api.volume",
    "engine.client.opening",
    "engine.client.signals",
    "engine.pool",
    "engine.pool_life",
    "engine.pool_options",
    "engine.pool_verbs",
    "engine.wire.importable",
    "importer",
    "lazy_dataclass",
    "lazy_named_tuple",
    "providers.base",
    "providers.errors",
    "providers.shared.inherited_files",
    "providers.local",
    "providers.shared.option_names",
    "providers.shared.paths",
)
RUNNING = (
    *DECLARING,
    "actors",
    "engine.client",
    "-engine.client.adoption",
    "-engine.client.mapping",
    "-engine.client.file_transfer",
    "-engine.client.running_tasks",
    "-engine.client.provider_fallback",
    "-engine.client.streaming",
    "-engine.client.traced_packer",
    "engine.node.client_channels",
    "engine.node.blobs",
    "engine.node.context",
    "engine.node.exception_pickle",
    "engine.node.failure",
    "engine.node.freeports",
    "engine.node.limits",
    "engine.node.notices.sources",
    "engine.node.pipe",
    "engine.node.worker_streams",
    "engine.objects",
    "-engine.objects.peer_keys",
    "engine.record",
    "-engine.record.display.live",
    "-engine.record.display.notebook",
    "-engine.record.display.plain",
    "-engine.record.traces",
    "engine.record.runs",
    "engine.runtime.plugin_host",
    "engine.serialization",
    "engine.transport",
    "-engine.transport.bootstrapped_route",
    "-engine.transport.ssh",
    "-engine.transport.ssh_route",
    "engine.wire",
    "providers.shared.nvidia_smi",
    "providers.shared.pool_lock",
    "providers.shared.sockets",
    "providers.shared.threads",
    "providers.shared.watching",
)
LIBRARIES = {"anyio", "cloudpickle", "msgpack", "sniffio", "typing_extensions"}
LIBRARIES |= {"sitecustomize"}  # which Debian's Python has, and imports before any program
HEAVY = {"decimal", "email", "http", "multiprocessing", "sqlite3", "statistics", "tempfile", "unittest", "xml"}


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """The modules that were there when the pool was declared, had begun, and had ended; and those of its worker."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def surplus(modules: Sequence[str], rooms: Sequence[str]) -> list[str]:
    """Those of ours that are in none of the rooms, and those of others that are not `LIBRARIES`."""
    allowed = tuple(room for room in rooms if not room.startswith("-"))
    refused = tuple(room[1:] for room in rooms if room.startswith("-"))
    found = []
    for module in modules:
        top, _, room = module.partition(".")
        if top == "outrider":
            is_parent = any(each.startswith(f"{room}.") for each in allowed) or not room
            if not is_parent and (not _within(room, allowed) or _within(room, refused)):
                found.append(module)
        elif top not in sys.stdlib_module_names | LIBRARIES and not top.startswith(("_", "cython")):
            found.append(module)
    return sorted(found)


def _within(room: str, rooms: Sequence[str]) -> bool:
    return any(f"{room}.".startswith(f"{each}.") for each in rooms)


@pytest.mark.parametrize("moment", ["declared", "begun"])
def test_before_the_machines_are_begun_only_what_declares_a_pool_is_imported(
    imported: dict[str, list[str]], moment: str
) -> None:
    assert surplus(imported[moment], DECLARING) == []
    assert {"asyncssh", "datetime", "hashlib", "json", "random", "shutil"} & set(imported[moment]) == set()


def test_a_local_pool_that_ran_a_call_has_imported_nothing_it_did_not_need(imported: dict[str, list[str]]) -> None:
    assert surplus(imported["ended"], RUNNING) == []
    assert {"ctypes", "random", "secrets"} & set(imported["ended"]) == set()


def test_the_end_of_a_pool_imports_nothing(imported: dict[str, list[str]]) -> None:
    """Whoever waits for a program's end waits for that as well, and then for its modules to be taken apart."""
    assert imported["late"] == []


@pytest.mark.parametrize("moment", ["declared", "begun", "ended"])
def test_no_large_module_of_the_standard_library_is_imported(imported: dict[str, list[str]], moment: str) -> None:
    assert {module.partition(".")[0] for module in imported[moment]} & HEAVY == set()


def test_a_worker_has_what_tasks_need_and_nothing_of_the_client(imported: dict[str, list[str]]) -> None:
    rooms = (
        "engine.api",
        "engine.node",
        "engine.serialization",
        "engine.wire",
        "importer",
        "lazy_dataclass",
        "lazy_named_tuple",
    )
    mine = [module for module in imported["worker"] if module not in ("__main__", "__mp_main__")]
    assert surplus(mine, (*rooms, "engine.runtime", "providers.local", "providers.shared.sockets")) == []


def test_an_executor_has_nothing_of_what_workers_alone_need() -> None:
    """Its machines' start waits for its imports. The fork servers' are done while the first executors start."""
    program = "import json, sys; import outrider.engine.node.server; print(json.dumps([*sys.modules]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    modules = json.loads(done.stdout)
    of_node = ("forkserver", "template", "worker", "call", "environ", "profiling", "task_profile")
    rooms = ("engine.node", "engine.wire", "importer", "lazy_dataclass", "lazy_named_tuple")
    assert surplus(modules, (*rooms, *(f"-engine.node.{each}" for each in of_node))) == []
    assert {"hashlib", "random", "shutil"} & set(modules) == set()


def test_surplus_modules_are_found() -> None:
    modules = ["outrider", "outrider.engine.api.calls", "outrider.engine.api.volume", "json", "rich.table", "anyio.abc"]
    assert surplus(modules, ("engine.api", "-engine.api.volume")) == ["outrider.engine.api.volume", "rich.table"]
