"""Workers import what hosts have, a Python with msgpack and cloudpickle, whatever kind of call brought them a task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from collections.abc import Iterator

from outrider import Local, Pool, compute


@compute
def double(number: int) -> int:
    return 2 * number


@compute
async def doubled_later(number: int) -> int:
    return 2 * number


@compute
def doubled_all(numbers: Iterator[int]) -> Iterator[int]:
    for number in numbers:
        yield 2 * number


@compute
def imported() -> list[str]:
    return [name for name in ("anyio", "asyncssh", "rich", "structlog") if name in sys.modules]


if __name__ == "__main__":
    with Pool(provider=Local(), nodes=1, console="silent") as pool:
        assert pool.run(double(1)) == 2
        assert pool.broadcast(doubled_later(1)) == [2]
        assert pool.submit(double(1)).result() == 2
        assert list(pool.map(double, [1, 2])) == [2, 4]
        assert list(pool.map(doubled_later, [1, 2])) == [2, 4]
        assert list(pool.stream(doubled_all(iter([1, 2])))) == [2, 4]
        print(pool.run(imported()))
"""


def test_no_kind_of_call_makes_a_worker_import_what_only_clients_have(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
