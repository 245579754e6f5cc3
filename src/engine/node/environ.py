"""The information that a task gets about itself: its environment variables, and its `instance_info`.

`Info` merges `instance_info` from the client's `View` of the pool (its nodes), the broadcast's ranks, and the worker's
own values. `RankVariables` sets the variables by which ``torchrun`` gives a process its rank, and
`drop_other_launchers` removes such variables of other launchers.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import socket
from collections.abc import Mapping
from typing import Any

import msgpack

RANK_VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip

# Variables by which a launcher gives a process its rank. If `torchrun`, `srun` or `mpirun` has started the pool's
# program, libraries in a task would take that rank for the task's rank. Each line's comment names libraries that read
# its variables. Variables about a job (SLURM_JOB_ID, LSB_JOBID) and settings of MPI (OMPI_MCA_btl, PMIX_MCA_gds) are
# not in the expression: tasks keep them.
OTHER_LAUNCHERS = re.compile(
    r"TORCHELASTIC_.*|ROLE_(RANK|WORLD_SIZE|NAME)|GROUP_WORLD_SIZE"  # read by Lightning, and by torch's store
    r"|PET_.*"  # set by Kubeflow; `torchrun` takes its defaults from them
    r"|CROSS_(RANK|SIZE)|LOCAL_SIZE"  # set by DeepSpeed's launcher
    r"|SLURM_(PROCID|LOCALID|NODEID|GTIDS|TASK_PID|NTASKS|NPROCS|NNODES|NTASKS_PER_.*|TASKS_PER_NODE)"  # Lightning, JAX
    r"|SLURM_STEP_.*|SLURM_STEPID"  # read by JAX and Open MPI to recognize a start by `srun`
    r"|OMPI_(COMM_WORLD_.*|UNIVERSE_SIZE|APP_CTX_.*|NUM_APP_CTX|FIRST_RANKS|ARGV|COMMAND|FILE_LOCATION)"  # Accelerate
    r"|OMPI_MCA_(ess|ess_base_.*|pmix|orte_(hnp_uri|local_daemon_uri|jobid|num_nodes|app_num|launch|ess_.*))"  # JAX
    r"|PMI_.*|PMI2_.*|PMIX_(?!MCA_).*|PRTE_LAUNCHED"  # the launcher's socket, read by MPICH, Intel MPI, Open MPI
    r"|MPI_LOCAL(RANKID|NRANKS)|MV2_COMM_WORLD_.*"  # read by Accelerate
    r"|PALS_(RANKID|LOCAL_RANKID|NODEID|APID|.*_SIZE)"
    r"|JSM_.*|LSB_DJOB_RANKFILE"  # read by Lightning, on LSF clusters
    r"|FLUX_TASK_(RANK|LOCAL_ID)|FLUX_JOB_(SIZE|NNODES)"
    r"|HOROVOD_(RANK|SIZE|LOCAL_.*|CROSS_.*|HOSTNAME|CONTROLLER|CPU_OPERATIONS|GLOO_.*)"
    r"|TF_CONFIG"  # read by TensorFlow and Keras
)


def drop_other_launchers() -> None:
    """Remove all rank variables, of other launchers and of Outrider's own, from this process's environment."""
    for name in [*os.environ]:
        if name in RANK_VARIABLES or OTHER_LAUNCHERS.fullmatch(name):
            del os.environ[name]


class Variable:
    """An environment variable whose value changes with every task, visible to C code and child processes.

    `setenv` would leak 700 bytes and take 2 us for each task, because glibc keeps every value that it was given and
    searches all of them. `putenv` uses memory that belongs to this object, which overwrites it.
    """

    def __init__(self, name: str) -> None:
        self._name = os.fsencode(name)
        self._place = ctypes.create_string_buffer(0)

    def set(self, text: str) -> None:
        value = os.fsencode(text)
        entry = b"%b=%b" % (self._name, value)
        if len(entry) < len(self._place):
            self._place.value = entry
            _putenv(self._place)  # needed each time: the last task may have set the variable itself
        else:
            place = ctypes.create_string_buffer(entry, 2 * len(entry))
            _putenv(place)
            self._place = place
        os.environ._data[self._name] = value  # type: ignore[attr-defined]  # os.environ would call setenv


class RankVariables:
    """The variables by which ``torchrun`` gives a process its rank, in a worker that runs one task at a time.

    They are set while a rank of a broadcast runs, and not for other tasks.
    """

    def __init__(self) -> None:
        self.present = False
        self._variables = {name: Variable(name) for name in RANK_VARIABLES}
        self._outside: dict[str, str] = {}  # the values in tasks without a rank, such as those of `Image(env=...)`
        self._place: tuple[object, ...] = ()
        self._texts: dict[str, str] = {}
        self._values: dict[bytes, bytes] = {}  # `_texts` as bytes, as `os.environ` stores them

    def set(self, info: Mapping[str, Any]) -> None:
        """Set the variables of the rank with this ``instance_info``. Takes 1.5 us if only the port has changed."""
        if not self.present:
            self.present = True
            self._outside = {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}
        place = (
            info["rank"], info["world_size"], info["local_rank"], info["local_world_size"], info["node"],
            info["head_addr"],
        )  # fmt: skip
        if place != self._place:
            rank, size, local_rank, local_size, node, address = self._place = place
            texts = rank, size, local_rank, local_size, node, node, address
            self._texts = {name: str(text) for name, text in zip(RANK_VARIABLES, texts, strict=False)}
            self._values = {os.fsencode(name): os.fsencode(text) for name, text in self._texts.items()}
        if not self._values.items() <= os.environ._data.items():  # type: ignore[attr-defined]
            for name, text in self._texts.items():
                self._variables[name].set(text)
        self._variables["MASTER_PORT"].set(str(info["head_port"]))

    def clear(self) -> None:
        """Restore the values that the variables had before a rank ran in this process."""
        self.present = False
        for name in RANK_VARIABLES:
            os.environ.pop(name, None)
        os.environ.update(self._outside)


_putenv = ctypes.PyDLL(None).putenv


INFO_VARIABLE = (
    "COMPUTE_POOL"  # name of the environment variable that every task gets, with its `instance_info` as JSON
)


class Info:
    """The maker of each task's `instance_info`, as dict and JSON. It caches the values that do not change."""

    def __init__(self, worker: int, address: str, hostname: str) -> None:
        self._own: dict[str, Any] = {"worker": worker, "hostname": hostname}
        self._defaults = {
            "pool": "",
            "node": 0,
            "total_nodes": 1,
            "workers_per_node": 1,
            "accelerators": 0,
            "total_accelerators": 0,
            "accelerator": None,
            "peers": [{"rank": 0, "node": 0, "hostname": hostname, "address": address, "port": 0}],
            "rank": 0,
            "world_size": 1,
            "local_rank": 0,
            "local_world_size": 1,
            "is_head": True,
            "head_addr": address,
            "head_port": 0,
            "generation": 0,
        }
        self._view: dict[str, Any] = {}
        self._port = 0
        self._last: _Alike | None = None

    def view(self, packed: bytes) -> None:
        self._view = msgpack.unpackb(packed)
        os.environ.update(self._view.pop("variables", {}))
        self._last = None

    def release_port(self) -> None:
        """Let the next task get another ``head_port``, because the last task may have used the current one."""
        self._port = 0

    def of(self, job: int, number: int, world: bytes | None, thread: int = 0) -> tuple[dict[str, Any], str]:
        """Return a task's `instance_info` as a dict and as JSON.

        Args:
            job: number of the job (one call, map or broadcast of the client).
            number: 1 for the first attempt of the task.
            world: the broadcast's ranks and this rank, packed by msgpack; None for other tasks.
            thread: index of the worker's thread that runs the task.
        """
        generation: dict[str, Any] = {} if world is None else msgpack.unpackb(world)
        if thread or "peers" in generation:
            if world is None:
                generation["head_port"] = self._free_port()
            fields = self._merged(generation) | {"job": job, "attempt": number}
            fields["worker"] += thread
            return fields, json.dumps(fields)
        port = self._free_port() if world is None else generation.pop("head_port", 0)
        alike = self._last
        if alike is None or alike.generation != generation:
            alike = self._last = _Alike(generation, self._merged(generation))
        return alike.of(port, job, number)

    def _merged(self, generation: dict[str, Any]) -> dict[str, Any]:
        return {**self._defaults, **self._view, **generation, **self._own}

    def _free_port(self) -> int:
        self._port = self._port or free_port()
        return self._port


class _Alike:
    """A cache of the `instance_info` of tasks that differ only in job, attempt and head port.

    Such tasks belong to no broadcast, or to broadcasts on the same nodes.
    """

    def __init__(self, generation: dict[str, Any], fields: dict[str, Any]) -> None:
        self.generation = generation
        self._head: dict[str, Any] | None = None
        if generation:
            head: dict[str, Any]
            head, *self._others = fields.pop("peers")
            self._head = head
            self._head_text = json.dumps({**head, "port": None}).removesuffix("null}")
            self._others_text = "".join(f", {json.dumps(peer)}" for peer in self._others)
        self._fields = fields
        self._text = json.dumps(fields)[:-1]

    def of(self, port: int, job: int, number: int) -> tuple[dict[str, Any], str]:
        fields = {**self._fields, "job": job, "attempt": number, "head_port": port}
        text = f'{self._text}, "job": {job}, "attempt": {number}, "head_port": {port}'
        if self._head is not None:
            fields["peers"] = [{**self._head, "port": port}, *self._others]
            text = f'{text}, "peers": [{self._head_text}{port}}}{self._others_text}]'
        return fields, text + "}"


def free_port() -> int:
    """Return a TCP port that is free at the time of the call."""
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
    return port
