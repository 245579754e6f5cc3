"""The ranks of a script: their processes, and the variables of ``torchrun`` that other broadcasts do not set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ...lazy_dataclass import dataclass
from ..api.plugin import Plugin
from ..plugins.rank_layout import Ranks, interface, own_address, ranks_on, unless_set
from ..runtime.instance_info import sharing

if TYPE_CHECKING:
    from ...actors.interfaces import NodeFacts
    from ..api.instance import InstanceInfo


@dataclass(frozen=True)
class ScriptRanks(Plugin):
    """The plugin for the ranks of a script: ``ranks`` new processes on each node.

    A script sets up communication itself.

    ``max_restarts``: passed to the script in an environment variable.
    """

    ranks: Ranks = "auto"
    max_restarts: int = 0

    name: ClassVar[str] = "script"
    collective: ClassVar[bool] = True
    fresh_process: ClassVar[bool] = True

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return ranks_on(facts, self.ranks)

    def env(self, info: InstanceInfo) -> Mapping[str, str]:
        # See torch.distributed.run, "Environment Variables". TORCHELASTIC_USE_AGENT_STORE is not set, so that rank 0
        # creates the store.
        variables = {
            "GROUP_WORLD_SIZE": str(info.total_nodes),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(info.rank),
            "ROLE_WORLD_SIZE": str(info.world_size),
            "TORCHELASTIC_RESTART_COUNT": str(max(0, info.generation - 1)),
            "TORCHELASTIC_MAX_RESTARTS": str(self.max_restarts),
            "TORCHELASTIC_RUN_ID": info.pool,
        }
        # without this variable, gloo looks up the address of this host's name, which may be wrong
        if (name := interface(own_address(info))) is not None:
            variables |= unless_set({"GLOO_SOCKET_IFNAME": name})
        if sharing(info) > 1:  # ranks share the node: as under torchrun, do not let each of them use every core
            variables |= unless_set({"OMP_NUM_THREADS": "1"})
        return variables
