"""The tensorflow plugin: every rank is a worker in one ``TF_CONFIG``. Only this module imports tensorflow."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar

from ...lazy_dataclass import dataclass
from ..api.plugin import Plugin, Ports
from ..runtime.instance_info import sharing
from .client_versions import installed, same_version
from .rank_layout import Ranks, checked_ranks, devices, endpoint, ranks_on, unless_set

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo


def tensorflow(ranks_per_node: Ranks = 1) -> TensorFlow:
    """Run the ranks of a broadcast as the workers of one TensorFlow cluster.

    Args:
        ranks_per_node: The number of workers on each node. Default: one for all GPUs of a node. "auto": one per GPU.

    Raises:
        SpecError: ``ranks_per_node`` is not valid.
    """
    return TensorFlow(checked_ranks("tensorflow", ranks_per_node))


@dataclass(frozen=True)
class TensorFlow(Plugin):
    """The plugin that `tensorflow` makes."""

    ranks: Ranks = 1

    name: ClassVar[str] = "tensorflow"
    collective: ClassVar[bool] = True
    fresh_process: ClassVar[bool] = True  # TensorFlow's server cannot be stopped once it has started
    ports: ClassVar[Ports] = "ranks"

    def packages(self, accelerators: Sequence[str]) -> Sequence[str]:
        if accelerators:
            return (same_version("tensorflow", "tensorflow-cpu", extra="and-cuda"),)
        return installed("tensorflow", "tensorflow-cpu")[:1] or ("tensorflow",)

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return ranks_on(facts, self.ranks)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        alone = [endpoint(info.head_addr, info.head_port)]
        workers = [endpoint(peer.address, peer.port) for peer in info.peers] if info.world_size > 1 else alone
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": info.rank}}
        variables = {"TF_CONFIG": json.dumps(config)}
        own = devices(info)
        if 0 < len(own) < info.accelerators:  # otherwise each process allocates the memory of all GPUs
            variables |= unless_set({"CUDA_VISIBLE_DEVICES": ",".join(map(str, own))})
        if (processes := sharing(info)) > 1:
            threads = str(max(1, len(os.sched_getaffinity(0)) // processes))
            variables |= unless_set({"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads})
        return variables

    @contextmanager
    def session(self, info: InstanceInfo) -> Iterator[None]:
        yield
        # Not after an error: a failed rank would wait for the others, and the others for the failed rank.
        if info.world_size > 1:
            _leave_together(info)


def _leave_together(info: InstanceInfo) -> None:
    """Return when all ranks have arrived; rank 0, the coordinator, returns last.

    Workers fetch data from each other: data of a worker that ends early would be missing on the others.
    """
    from tensorflow.python.eager import context  # pyright: ignore[reportMissingImports]

    cluster: Any = context.context()
    if not cluster.coordination_service:  # the function made no strategy, so no rank fetches anything
        return
    others = range(1, info.world_size)
    if info.rank == 0:
        for rank in others:
            cluster.get_config_key_value(f"outrider/here/{rank}")
        cluster.set_config_key_value("outrider/all", "here")
        for rank in others:
            cluster.get_config_key_value(f"outrider/gone/{rank}")
    else:
        cluster.set_config_key_value(f"outrider/here/{info.rank}", "1")
        cluster.get_config_key_value("outrider/all")
        with suppress(Exception):  # the reply may be lost with rank 0, which has read the value
            cluster.set_config_key_value(f"outrider/gone/{info.rank}", "1")
