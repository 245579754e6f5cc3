"""A pool goes on when its package changes on disk under it: what it may need is loaded by then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from importlib.abc import MetaPathFinder
from collections.abc import Iterator
from outrider import Local, Pool, compute
from outrider.engine.client import open_pool

class Upgraded(MetaPathFinder):
    "Refuses whatever is imported of the package now, as a half of another version would."
    def find_spec(self, name, path=None, target=None):
        if name.startswith("outrider") and name not in sys.modules:
            raise ImportError(f"{name} is of another version")

@compute
def double(x: int) -> int:
    return 2 * x

@compute
def fails() -> None:
    raise ValueError("mine")

@compute
def left() -> None:
    open("left.txt", "w").close()

@compute
def count(n: int) -> Iterator[int]:
    yield from range(n)

with Pool(provider=Local(), nodes=2, console="silent") as pool:
    pool.run(double(1))
    open_pool.load_rooms()
    sys.meta_path.insert(0, Upgraded())
    print(list(pool.map(double, range(3))), sorted(pool.as_completed(double(x) for x in range(3))))
    print(pool.gather(double(1), double(2)), pool.broadcast(double(3)), list(pool.stream(count(2))))
    print(pool.stacks(), [list(values) for values in pool.broadcast(count(2))], pool.submit(double(4)).result())
    pool.run(left(), on=0)
    print([path.name for path in pool.fetch("left.txt", to=sys.argv[1], on=0)])
    print(pool.put(b"x" * 1_000_000).get()[:1], pool.snapshot().ready, bool(pool._repr_html_()))
    for call in (fails(), double(lambda: Upgraded)):
        try:
            pool.run(call)
        except Exception as error:
            print(type(error).__name__)
print("ended")
"""
EXPECTED = """\
[0, 2, 4] [0, 2, 4]
(2, 4) [6, 6] [0, 1]
[] [[0, 1], [0, 1]] 8
['left.txt']
b'x' 2 True
ValueError
TypeError
ended
"""


def test_verbs_work_when_the_package_has_changed_on_disk(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env={**os.environ, "OUTRIDER_STATE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.returncode) == (EXPECTED, 0), ran.stderr
