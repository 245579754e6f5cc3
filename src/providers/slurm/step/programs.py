"""The programs of the step that runs on each node of a Slurm job. See "A Slurm job's nodes" in docs/protocol.md.

`step_server` accepts the client's SSH connections, `relay` carries such a connection, and `last_step` cancels a job
whose batch shell's node has failed. The node's own Python runs them without this package: a client sends their texts.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

# The names of the files, both in the job's folder and in this folder.
SERVER, RELAY, LAST = "step_server.py", "relay.py", "last_step.py"
HERE = Path(__file__).resolve().parent


@cache
def texts() -> dict[str, str]:
    """Return the texts of the programs by their file names in the job's folder."""
    return {name: (HERE / name).read_text("ascii") for name in (SERVER, RELAY, LAST)}
