"""A pool on this computer does without SSH: none of its processes imports asyncssh, nor the cryptography of it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
from pathlib import Path
from outrider import Local, Pool, compute

def foreign():
    return sorted(name for name in sys.modules if name.partition(".")[0] in {"asyncssh", "cryptography"})

@compute
def worker():
    return foreign()

def libraries(pid):
    return "cryptography" in Path(f"/proc/{pid}/maps").read_text()

def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

async def main():
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        assert await pool.broadcast(worker()) == [[], []]
        for node in pool.snapshot().nodes:
            fork_server, executor = int(node.facts["group"]), int(node.facts["pid"])
            everybody = {executor, fork_server, parent(fork_server), parent(parent(fork_server))}
            assert len(everybody) == 4
            assert not any(map(libraries, everybody)), everybody
    assert foreign() == []
    print("none")

asyncio.run(main())
"""


def test_no_process_of_a_local_pool_imports_asyncssh() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "none\n", done.stderr[-3000:]
