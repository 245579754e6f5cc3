"""The package index serves hosts that have no way out, hangs, or lacks everything."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from netlab import PackageIndex, write_wheel

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-cache-dir")

ASKS = """
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=0.5)
except OSError as error:
    print(type(error).__name__)
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    write_wheel(folder, "far-away", "1.0", {"far_away.py": "DISTANCE = 7\n"})
    write_wheel(folder, "far-away", "1.1", {"far_away.py": "DISTANCE = 8\n"})
    write_wheel(folder, "nearby", "2.0", {"nearby/__init__.py": "", "nearby/place.py": "NAME = 'here'\n"})
    return folder


def until(holds: Callable[[], object]) -> None:
    last = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < last, "it did not come true"
        time.sleep(0.005)


def install(host, index: PackageIndex, lab, *what: str):
    env = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": index.url, "PIP_TRUSTED_HOST": lab.address}
    return host.run(*PIP, "--target", "/root/site", *what, env=env, check=False, limit_s=300)


def test_a_host_installs_from_it(lab, hosts, wheels):
    [host] = hosts(1)
    with PackageIndex(lab.address, wheels) as index:
        done = install(host, index, lab, "Far_Away", "nearby==2.0")
        assert done.returncode == 0, done.stderr
        assert "/simple/far-away/" in index.requests
    shown = host.run(
        sys.executable,
        "-c",
        "import far_away, nearby.place as p; print(far_away.DISTANCE, p.NAME)",
        env={"PYTHONPATH": "/root/site"},
    )
    assert shown.stdout.split() == ["8", "here"]


def test_what_it_does_not_have_is_not_found(lab, hosts, wheels):
    [host] = hosts(1)
    with PackageIndex(lab.address, wheels) as index:
        done = install(host, index, lab, "nowhere")
        assert "No matching distribution found for nowhere" in done.stderr
        index.mood = "lacks"
        done = install(host, index, lab, "nearby")
        assert "No matching distribution found for nearby" in done.stderr


def test_it_hangs_until_it_is_closed(lab, hosts, wheels):
    [host] = hosts(1)
    with PackageIndex(lab.address, wheels, mood="hangs") as index:
        done = host.run("python3", "-c", ASKS, f"{index.url}nearby/")
        assert done.stdout.strip() == "TimeoutError"
        until(lambda: index.requests)  # its thread may be late: the host has waited for half a second alone
        assert index.requests == ["/simple/nearby/"]
