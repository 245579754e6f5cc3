"""``stand_in.py PROGRAM``: runs a page's program with nodes of this computer in place of the machines that it names.

The program itself is not changed. What it asks of machines (accelerators, packages, volumes) is left out, since it may
not be here, and nothing is installed or mounted on this computer for a pool; its functions, plugins and other options
are as they stand there.
"""

from __future__ import annotations

import runpy
import sys
from typing import Any

import outrider
from outrider import Image, Local, Pool

OF_MACHINES = {"accelerator", "vcpus", "memory_gb", "disk_gb", "architecture", "interconnect", "volumes"}


class Here(Local):
    """A provider of machines elsewhere, played by this computer."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()


class PoolHere(Pool):
    def __init__(self, **options: Any) -> None:
        image = options.pop("image", Image())
        rest = {name: value for name, value in options.items() if name not in OF_MACHINES}
        super().__init__(**{"console": "silent", **rest}, image=Image(env=image.env))


if __name__ == "__main__":
    program = sys.argv[1]
    elsewhere = ("AWS", "GCP", "Hyperstack", "Lambda", "RunPod", "SSH", "Vast")
    vars(outrider).update(dict.fromkeys(elsewhere, Here), Pool=PoolHere)
    runpy.run_path(program, run_name="__main__")
