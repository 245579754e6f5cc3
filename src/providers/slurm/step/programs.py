"""The programs that each node of a Slurm job runs, as a step of it: docs/protocol.md has "A Slurm job's nodes".

`step_server` lets the client in by SSH, `relay` carries such a connection, and `last_step` cancels a job whose batch
shell is gone with its node. They run on the node's own Python, without this package: a client sends their texts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

SERVER, RELAY, LAST = "step_server.py", "relay.py", "last_step.py"  # in the job's folder, as here
HERE = Path(__file__).resolve().parent


@cache
def texts() -> dict[str, str]:
    """Return the texts of the programs by the names of their files in the job's folder."""
    return {name: (HERE / name).read_text("ascii") for name in (SERVER, RELAY, LAST)}
